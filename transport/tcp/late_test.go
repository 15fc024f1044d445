package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// TestDialledLate: a connection that stands when its time is over is a link, for the peer may have sent
// on it what it has forgotten by now. One that does not stand is an error, and nothing stays open.
func TestDialledLate(t *testing.T) {
	p := newProvider(t)
	ln, err := net.Listen("tcp4", "127.0.0.85:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	to, from := ln.Addr().(*net.TCPAddr).AddrPort(), netip.MustParseAddrPort("127.0.0.86:0")
	// As if this process stood still from the moment on in which the socket connects.
	dial := func(to netip.AddrPort) (*Link, error) {
		ctx, cancel := context.WithCancel(context.Background())
		p.connecting = cancel
		defer func() { p.connecting = nil }()
		l, err := p.Dial(ctx, from, to, 3)
		if err != nil {
			return nil, err
		}
		return l.(*Link), nil
	}
	l, err := dial(to)
	if err != nil {
		t.Fatalf("a connection that stands was closed: %v", err)
	}
	defer l.Abort()
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if l.RemoteAddr() != to || int(l.LocalAddr().Port())%wire.MaxLanes != 3 {
		t.Errorf("from %v to %v", l.LocalAddr(), l.RemoteAddr())
	}
	h := wire.Header{Seq: 1, SPort: 5, DPort: 6}
	if _, err := c.Write(h.Append(nil)); err != nil {
		t.Fatal(err)
	}
	e := newEnds(t, l)
	l.Start(e)
	c.Close()
	e.once(t, "the peer has closed", io.EOF)
	if n := e.frames.Load(); n != 1 {
		t.Errorf("%d frames came, want 1", n)
	}

	ln.Close()
	before := openFiles(t)
	if l, err := dial(to); err == nil {
		l.Abort()
		t.Error("nobody listens, and there is a link")
	}
	eventually(t, "everything to be closed", func() bool { return openFiles(t) == before })
}
