package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
)

// Ports are looked for below what Linux takes source ports from (32768 on,
// net.ipv4.ip_local_port_range) and above most services.
const (
	lowest  = 10000
	highest = 31999
)

// A daemon that is given one of these, which it uses for something else unless told otherwise, does not start.
const (
	defaultsFrom = 16385
	defaultsTo   = 16388
)

// On finds a TCP port that is unused at all of the addresses, without any at 0.0.0.0.
// Another caller gets the same port only by chance, 1 in 22,000.
func On(addrs ...netip.Addr) (uint16, error) {
	if len(addrs) == 0 {
		addrs = []netip.Addr{netip.IPv4Unspecified()}
	}
	var last error
	for range 100 {
		port := uint16(lowest + rand.IntN(highest-lowest+1))
		if last = free(port, addrs); last == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no TCP port from %d to %d is free on %v: %w", lowest, highest, addrs, last)
}

func free(port uint16, addrs []netip.Addr) error {
	if port >= defaultsFrom && port <= defaultsTo {
		return fmt.Errorf("port %d is a default of rdsd's", port)
	}
	for _, a := range addrs {
		l, err := net.Listen("tcp", netip.AddrPortFrom(a, port).String())
		if err != nil {
			return err
		}
		l.Close()
	}
	return nil
}
