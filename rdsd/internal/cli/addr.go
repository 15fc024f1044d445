package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// parseEndpoint reads "10.0.0.2:4000" or "[fd00::2]:4000". what names the
// argument in the error ("--to", "destination").
func parseEndpoint(what, s string) (netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		if ap.Addr().Zone() != "" {
			return netip.AddrPort{}, usagef("%s %q: RDS addresses have no zone; leave out %q", what, s, "%"+ap.Addr().Zone())
		}
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
	}
	return netip.AddrPort{}, usagef("%s %q is not an RDS address: %s", what, s, whyNotEndpoint(s))
}

// whyNotEndpoint says what is wrong with s and what would be right.
func whyNotEndpoint(s string) string {
	const right = `write it as 10.0.0.2:4000 or [fd00::2]:4000`
	if s == "" {
		return "it is empty; " + right
	}
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Is4() {
			return fmt.Sprintf("the port is missing; did you mean %s:4000?", a)
		}
		return "an IPv6 address stands in brackets, its port after them: [fd00::2]:4000"
	}
	host, port, err := net.SplitHostPort(s)
	switch {
	case err != nil && strings.Count(s, ":") > 1 && !strings.HasPrefix(s, "["):
		return "an IPv6 address stands in brackets, its port after them: [fd00::2]:4000"
	case err != nil:
		return right
	}
	if _, err := netip.ParseAddr(host); err != nil {
		if host == "" {
			return "the address is missing; " + right
		}
		return fmt.Sprintf("%q is neither an IPv4 nor an IPv6 address; %s", host, right)
	}
	if n, err := strconv.Atoi(port); err != nil {
		return fmt.Sprintf("%q is not a port number; ports go from 0 to 65535", port)
	} else if n < 0 || n > 65535 {
		return fmt.Sprintf("port %d is out of range; ports go from 0 to 65535", n)
	}
	return right
}

// parseDestination is parseEndpoint for something datagrams are sent to.
func parseDestination(what, s string) (netip.AddrPort, error) {
	ap, err := parseEndpoint(what, s)
	switch {
	case err != nil:
		return ap, err
	case ap.Addr().IsUnspecified(), ap.Addr().IsMulticast(), ap.Addr() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return ap, usagef("%s %s: datagrams go to one node; multicast, broadcast and the unspecified address cannot be destinations", what, ap)
	case ap.Port() == 0:
		return ap, usagef("%s %s: port 0 answers pings only (see rdsd ping); give the port an application has bound", what, ap)
	}
	return ap, nil
}

// parseDestinations is parseDestination that takes a host name too, with all its
// addresses.
func parseDestinations(ctx context.Context, what, s string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	n, perr := strconv.ParseUint(port, 10, 16)
	if _, notAddr := netip.ParseAddr(host); err != nil || perr != nil || host == "" || notAddr == nil {
		ap, err := parseDestination(what, s)
		return []netip.AddrPort{ap}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(addrs) == 0 {
		return nil, usagef("%s %q: %q is neither an IPv4 nor an IPv6 address, nor a host name that resolves: %v", what, s, host, err)
	}
	var l []netip.AddrPort
	for _, a := range addrs {
		ap, err := parseDestination(what, netip.AddrPortFrom(a.Unmap(), uint16(n)).String())
		if err != nil {
			return nil, err
		}
		l = append(l, ap)
	}
	return l, nil
}

// parseLocal reads the address of a socket of ours: "10.0.0.1:4000",
// "10.0.0.1" (port 0: any), ":4000" or "4000" (address: the daemon's).
func parseLocal(what, s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	if port, err := strconv.ParseUint(strings.TrimPrefix(s, ":"), 10, 16); err == nil {
		return netip.AddrPortFrom(netip.Addr{}, uint16(port)), nil
	}
	return parseEndpoint(what, s)
}

// resolveHost reads an address or a host name.
func resolveHost(ctx context.Context, what, s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Unmap(), nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return netip.Addr{}, usagef("%s %q: a node is meant here, not a port of it; did you mean %s?", what, s, ap.Addr())
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", s)
	if err != nil || len(addrs) == 0 {
		return netip.Addr{}, usagef("%s %q is neither an address (10.0.0.2, fd00::2) nor a host name that resolves: %v", what, s, err)
	}
	return addrs[0].Unmap(), nil
}

// addrText shows an address; "-" when there is none.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

func endpointText(ap netip.AddrPort) string {
	if !ap.Addr().IsValid() {
		return "-"
	}
	return ap.String()
}
