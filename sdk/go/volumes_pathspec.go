package rdsd

import (
	"net/netip"
	"strings"

	"github.com/rdsd/rdsd/rdserr"
)

// Transports of a path.
const (
	TransportTCP = "tcp"
	TransportIB  = "ib" // RDMA: RoCEv2, or InfiniBand
)

// ParsePathSpec reads a path: SRC,DST or DST, with tcp: or ib: before it. A path of the kernel's
// (add_path of rtrs-client) is understood too: SRC@DST, where each end has ip: or gid:
// before it, and is over RDMA. The GID of a RoCEv2 device is its address.
func ParsePathSpec(s string) (PathSpec, error) {
	bad := func(why string) (PathSpec, error) {
		return PathSpec{}, rdserr.With(rdserr.ErrInvalid, "path %q: %s", s, why)
	}
	var p PathSpec
	rest := s
	// Only one of them, and only at the beginning: an end may be a host of that name with a port.
	for _, t := range []string{TransportTCP, TransportIB} {
		if r, ok := strings.CutPrefix(rest, t+":"); ok && p.Transport == "" {
			p.Transport, rest = t, r
		}
	}
	// rtrs-client takes both signs.
	src, dst, both := strings.Cut(rest, ",")
	if !both {
		src, dst, both = strings.Cut(rest, "@")
	}
	if !both {
		src, dst = "", rest
	}
	for _, end := range []*string{&src, &dst} {
		*end = strings.TrimSpace(*end)
		switch {
		// A GID of RoCEv2 is an IPv6 address, or an IPv4 one mapped into it (InfiniBand Architecture,
		// annex A17); the path is made between the addresses.
		case strings.HasPrefix(*end, "gid:"):
			a, err := netip.ParseAddr(strings.TrimPrefix(*end, "gid:"))
			if err != nil || !a.Is6() || a.IsUnspecified() {
				return bad("a GID is an IPv6 address, or ::ffff:10.0.0.7 of an IPv4 one; " + *end + " is none")
			}
			*end = a.Unmap().String()
		case strings.HasPrefix(*end, "ip:"):
			*end = strings.TrimPrefix(*end, "ip:")
		default:
			continue
		}
		// A kernel has these words for RDMA alone.
		switch p.Transport {
		case "":
			p.Transport = TransportIB
		case TransportTCP:
			return bad("ip: and gid: are of paths over RDMA, and this one is over TCP")
		}
	}
	// What is left is the daemon's to judge: here only what cannot be an end at all.
	switch {
	case dst == "":
		return bad("the destination is missing")
	case strings.ContainsAny(dst, ",@"):
		return bad("one path is a source and a destination; give each further one by itself")
	case strings.ContainsAny(src+dst, " /"):
		return bad("neither an address nor a host name has blanks or slashes")
	}
	p.Src, p.Dst = src, dst
	return p, nil
}

// String is p as ParsePathSpec reads it.
func (p PathSpec) String() string {
	s := p.Dst
	if p.Src != "" {
		s = p.Src + "," + s
	}
	if p.Transport != "" {
		s = p.Transport + ":" + s
	}
	return s
}
