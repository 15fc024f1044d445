package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
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

// A process goes through the ports in steps of stride from one that is drawn, so that it meets each of them once in
// span calls: two ports of one daemon are never the same, as they would be once in 22,000 times were each drawn.
const (
	span   = highest - lowest + 1
	stride = 7919 // a prime that is no factor of span
)

var (
	begin = rand.Uint64N(span)
	calls atomic.Uint64
)

func next() uint16 { return uint16(lowest + (begin+calls.Add(1)*stride)%span) }

// On finds a TCP port that is unused at all of the addresses, without any at 0.0.0.0.
// A process gets each port once in some 20,000 calls, another process the same one only by chance.
func On(addrs ...netip.Addr) (uint16, error) {
	if len(addrs) == 0 {
		addrs = []netip.Addr{netip.IPv4Unspecified()}
	}
	var last error
	for range 100 {
		port := next()
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
