package cli

import (
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// parseVolume reads NODE:NAME, where NODE may have a port: "10.0.0.7:disk",
// "store1:16388:disk", "[fd00::7]:disk". what names the argument in errors.
func parseVolume(what, s string) (node, name string, err error) {
	const right = "write it as NODE:NAME, for instance 10.0.0.7:disk, store1:disk or [fd00::7]:disk"
	if s == "" {
		return "", "", usagef("%s is empty: %s", what, right)
	}
	host, rest := "", ""
	if after, ok := strings.CutPrefix(s, "["); ok {
		var closed bool
		host, rest, closed = strings.Cut(after, "]")
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() || !closed {
			return "", "", usagef("%s %q: an IPv6 address stands between the brackets: [fd00::7]:disk", what, s)
		}
		if !strings.HasPrefix(rest, ":") {
			return "", "", usagef("%s %q: the name of the volume is missing; %s", what, s, right)
		}
		host, rest = "["+host+"]", rest[1:]
	} else {
		var named bool
		host, rest, named = strings.Cut(s, ":")
		switch {
		case !named:
			if s == "disk" { // more likely a name than a node
				return "", "", usagef("%s %q: the node is missing; %s", what, s, right)
			}
			return "", "", usagef("%s %q: the name of the volume is missing; did you mean %s:disk?", what, s, s)
		case host == "":
			return "", "", usagef("%s %q: the node is missing; %s", what, s, right)
		case strings.HasPrefix(rest, ":"), strings.Count(rest, ":") > 1:
			return "", "", usagef("%s %q: an IPv6 address stands in brackets: [fd00::7]:disk", what, s)
		}
		if strings.ContainsAny(host, "/ ") {
			return "", "", usagef("%s %q: %q is neither an address nor a host name; %s", what, s, host, right)
		}
	}
	node = host
	if port, name, ok := strings.Cut(rest, ":"); ok {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return "", "", usagef("%s %q: %q is not a port; ports go from 1 to 65535", what, s, port)
		}
		node, rest = net.JoinHostPort(strings.Trim(host, "[]"), port), name
	} else {
		node = strings.Trim(node, "[]")
	}
	if rest == "" {
		return "", "", usagef("%s %q: the name of the volume is missing; %s", what, s, right)
	}
	return node, rest, nil
}

// volumeText is the way back: what parseVolume reads.
func volumeText(node, name string) string {
	if a, err := netip.ParseAddr(node); err == nil && a.Is6() {
		node = "[" + node + "]"
	}
	return node + ":" + name
}

// parsePath reads a path; see rdsd.ParsePathSpec.
func parsePath(what, s string) (rdsd.PathSpec, error) {
	p, err := rdsd.ParsePathSpec(s)
	if err != nil {
		return p, usagef("%s: %v; write it as SRC,DST, for instance 10.0.0.1,10.0.0.7, or DST alone, with ib: before it for RDMA", what, err)
	}
	return p, nil
}

// cutTransport takes ib: or tcp: off NODE:NAME. A node of that name is meant if a port or the name of a
// volume follows.
func cutTransport(s string) (transport, volume string) {
	for _, t := range []string{rdsd.TransportIB, rdsd.TransportTCP} {
		rest, ok := strings.CutPrefix(s, t+":")
		if host, _, more := strings.Cut(rest, ":"); ok && more && strings.Trim(host, "0123456789") != "" {
			return t, rest
		}
	}
	return "", s
}

func pathText(p rdsd.PathSpec) string {
	s := p.Dst
	if p.Src != "" {
		s = p.Src + " > " + p.Dst
	}
	if p.Transport != "" && p.Transport != rdsd.TransportTCP {
		s += " over " + p.Transport
	}
	return s
}

// oneOf reads a word out of a few.
func oneOf[W ~string](flag, s string, words []W) (W, error) {
	if s == "" || slices.Contains(words, W(s)) {
		return W(s), nil
	}
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return "", usagef("%s %q: want %s", flag, s, orList(all))
}

func orList(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

var (
	attachWords   = []rdsd.VolumeAttach{rdsd.AttachSocket, rdsd.AttachNBD}
	accessWords   = []rdsd.VolumeAccess{rdsd.AccessReadOnly, rdsd.AccessReadWrite, rdsd.AccessMigration}
	unfencedWords = []rdsd.VolumeUnfenced{rdsd.UnfencedAfter, rdsd.UnfencedNow, rdsd.UnfencedWait}
	onLossWords   = []rdsd.VolumeOnLoss{rdsd.OnLossWait, rdsd.OnLossError}
)

// sizeUnits are multiples of 1024: "10G" and "10GiB" are the same, as for truncate and lvcreate.
const sizeUnits = "KMGTP"

// sizeHelp says so to whoever gives a size.
const sizeHelp = "K, M, G, T and P, or KiB to PiB, are multiples of 1024"

// sizeForm is a size: only digits and a point, for Rat would read more than that.
var sizeForm = regexp.MustCompile(`^([0-9.]{1,30})([` + sizeUnits + `]I?)?(B?)$`)

// parseSize reads a number of bytes: "4096", "512M", "1.5G", "10GiB". "10GB", 7 % less where it is a multiple
// of 1000 as for truncate, is refused, as it is in the configuration: a volume's size should not be guessed.
func parseSize(what, s string) (uint64, error) {
	bad := func(why string) (uint64, error) {
		return 0, usagef("%s %q: %s; write it as a number of bytes or as 512M, 1.5G, 2T (multiples of 1024)", what, s, why)
	}
	m := sizeForm.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(s)))
	if m == nil {
		return bad("that is not a size")
	}
	number, unit := m[1], m[2]
	if len(unit) == 1 && m[3] != "" {
		return 0, usagef("%s %q: %sB is a multiple of 1000 to some and of 1024 to others; %s%siB is of 1024, and a number alone is bytes", what, s, unit, number, unit)
	}
	factor := int64(1)
	if unit != "" {
		factor = int64(1) << (10 * (1 + strings.IndexByte(sizeUnits, unit[0])))
	}
	v, ok := new(big.Rat).SetString(number)
	if !ok {
		return bad("that is not a size")
	}
	v.Mul(v, new(big.Rat).SetInt64(factor))
	if !v.IsInt() {
		return bad("that is no whole number of bytes")
	}
	if !v.Num().IsInt64() {
		return bad("that is more than a volume can have")
	}
	return v.Num().Uint64(), nil
}

// parsePrefixes reads subnets; an address alone is one of one address.
func parsePrefixes(flag string, list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			out = append(out, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, usagef("%s %q: want a subnet or an address, for instance 10.0.0.0/24 or fd00::7", flag, s)
		}
		if p.Masked() != p {
			return nil, usagef("%s %q: bits are set behind the prefix; did you mean %s?", flag, s, p.Masked())
		}
		out = append(out, p)
	}
	return out, nil
}

func prefixText(list []netip.Prefix) string {
	words := make([]string, len(list))
	for i, p := range list {
		if words[i] = p.String(); p.IsSingleIP() {
			words[i] = p.Addr().String()
		}
	}
	return strings.Join(words, ", ")
}

// sizeText shows a size exactly where that is short: "10 GiB", "1000000512 B".
func sizeText(n uint64) string {
	unit := ""
	v := n
	for _, u := range sizeUnits {
		if v == 0 || v%1024 != 0 {
			break
		}
		v, unit = v/1024, string(u)+"i"
	}
	if v >= 10240 && unit != "" || unit == "" && v >= 1<<20 {
		return fmt.Sprintf("%s (%d bytes)", bytesCount(n), n)
	}
	return fmt.Sprintf("%d %sB", v, unit)
}
