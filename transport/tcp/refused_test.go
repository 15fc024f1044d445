package tcp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// TestListenersAreTheNodes: a listener's loop counts and keeps descriptors where its provider says.
func TestListenersAreTheNodes(t *testing.T) {
	p := &Provider{AcceptFailed: new(atomic.Uint64), Reserve: &accept.Reserve{}}
	if a := p.acceptor(nil, "peers"); a.Failed != p.AcceptFailed || a.Reserve != p.Reserve {
		t.Errorf("%p and %p, want %p and %p", a.Failed, a.Reserve, p.AcceptFailed, p.Reserve)
	}
}

// A peer that refuses is asked once: only a source port that is taken is a reason to try
// another.
func TestRefusedIsAskedOnce(t *testing.T) {
	to := netip.MustParseAddrPort("127.0.0.97:9")
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		t.Skipf("see what arrives: %v", err)
	}
	defer unix.Close(raw)
	if err := unix.Bind(raw, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t)
	if _, err := p.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.96:0"), to, 3); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("dialled: %v", err)
	}
	syns := 0
	for b := make([]byte, 1<<16); ; {
		n, err := unix.Read(raw, b)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		h := b[int(b[0]&15)*4 : n] // behind the header of IPv4
		if binary.BigEndian.Uint16(h[2:]) == to.Port() && h[13]&2 != 0 {
			if port := binary.BigEndian.Uint16(h); port%wire.MaxLanes != 3 {
				t.Errorf("lane 3 comes from port %d", port)
			}
			syns++
		}
	}
	if syns != 1 {
		t.Errorf("it was asked %d times", syns)
	}
}

// A node without descriptors dials nobody, neither for datagrams nor for volumes: what is left is kept
// for links that are accepted.
func TestNoRoomToDial(t *testing.T) {
	p := newProvider(t)
	ln, err := p.ListenOneSided(netip.MustParseAddrPort("127.0.0.97:0"), func(q transport.ConnRequest) { q.Reject(nil) })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	full := errors.New("no descriptors")
	p.Room = func() error { return full }
	if l, _, err := p.DialOneSided(t.Context(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil); l != nil || err != full {
		t.Errorf("for volumes: %v, %v", l, err)
	}
	if l, err := p.Dial(t.Context(), netip.MustParseAddrPort("127.0.0.96:0"), ln.Addr(), 0); l != nil || err != full {
		t.Errorf("for datagrams: %v, %v", l, err)
	}
}
