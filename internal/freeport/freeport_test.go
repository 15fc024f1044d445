package freeport

import (
	"net"
	"net/netip"
	"testing"
)

// TestOn: the port is free on every address, and is no source port.
func TestOn(t *testing.T) {
	a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	for range 100 {
		port, err := On(a, b)
		if err != nil {
			t.Fatal(err)
		}
		if port < lowest || port > highest {
			t.Fatalf("port %d", port)
		}
		for _, addr := range []netip.Addr{a, b} {
			l, err := net.Listen("tcp", netip.AddrPortFrom(addr, port).String())
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
	}
}

// TestUsed: one address that has it is enough.
func TestUsed(t *testing.T) {
	a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	port, err := On(b)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(b, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := free(port, []netip.Addr{a, b}); err == nil {
		t.Errorf("port %d of %v is taken and was said to be free", port, b)
	}
}

// TestDefaults: what a daemon listens on unless told otherwise is nobody's free port.
func TestDefaults(t *testing.T) {
	for port := uint16(defaultsFrom); port <= defaultsTo; port++ {
		if err := free(port, []netip.Addr{netip.MustParseAddr("127.0.0.99")}); err == nil {
			t.Errorf("port %d was said to be free", port)
		}
	}
}

// TestNowhere: an address that is not ours has no free port, and the error says which.
func TestNowhere(t *testing.T) {
	_, err := On(netip.MustParseAddr("192.0.2.1"))
	if err == nil {
		t.Fatal("a port of an address of nobody")
	}
	t.Log(err)
}

// TestEachOnce: a process meets every port once before it meets one again.
func TestEachOnce(t *testing.T) {
	met := map[uint16]bool{}
	for range span {
		port := next()
		if met[port] || port < lowest || port > highest {
			t.Fatalf("port %d after %d others", port, len(met))
		}
		met[port] = true
	}
}
