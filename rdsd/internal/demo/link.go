package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
)

// link is the wire between the two nodes: a relay of their TCP connections
// that can be cut. Each node is told that the RDS port is its own, so what it
// dials on the other's address is the relay, which listens there.
type link struct {
	mu    sync.Mutex
	whole bool                  // guarded by mu
	conns map[*net.TCPConn]bool // guarded by mu

	listeners []net.Listener
	wg        sync.WaitGroup
}

// end is one node as the link sees it.
type end struct {
	addr netip.Addr
	port uint16
}

// newLink relays connections between a and b.
func newLink(ctx context.Context, a, b end) (*link, error) {
	l := &link{whole: true, conns: map[*net.TCPConn]bool{}}
	for _, dir := range []struct{ from, to end }{{a, b}, {b, a}} {
		at := netip.AddrPortFrom(dir.to.addr, dir.from.port)
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
		if err != nil {
			l.close()
			return nil, fmt.Errorf("the link cannot listen on %s: %w", at, err)
		}
		l.listeners = append(l.listeners, ln)
		l.wg.Go(func() {
			l.accept(ln, func(in *net.TCPConn) (*net.TCPConn, error) {
				return dialLike(dir.from.addr, uint16(in.RemoteAddr().(*net.TCPAddr).Port), netip.AddrPortFrom(dir.to.addr, dir.to.port))
			})
		})
	}
	return l, nil
}

// carry relays connections to at as well, from the address from to to; those
// of the volume.
func (l *link) carry(ctx context.Context, at netip.AddrPort, from netip.Addr, to netip.AddrPort) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return fmt.Errorf("the link cannot listen on %s: %w", at, err)
	}
	l.listeners = append(l.listeners, ln)
	l.wg.Go(func() {
		l.accept(ln, func(*net.TCPConn) (*net.TCPConn, error) { return dialFrom(netip.AddrPortFrom(from, 0), to) })
	})
	return nil
}

func (l *link) close() {
	for _, ln := range l.listeners {
		ln.Close()
	}
	l.set(false)
	l.wg.Wait()
}

// set makes the link whole, or cuts it: what is on the wire is lost, and new
// connections are reset.
func (l *link) set(whole bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = whole
	if whole {
		return
	}
	for c := range l.conns {
		c.SetLinger(0)
		c.Close()
	}
	clear(l.conns)
}

// add keeps a pair of connections for the cut; false when the link is cut.
func (l *link) add(pair ...*net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		if !l.whole {
			c.SetLinger(0)
			c.Close()
			continue
		}
		l.conns[c] = true
	}
	return l.whole
}

func (l *link) drop(pair ...*net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range pair {
		c.Close()
		delete(l.conns, c)
	}
}

// accept relays until its listener is closed.
func (l *link) accept(ln net.Listener, dial func(in *net.TCPConn) (*net.TCPConn, error)) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.relay(c.(*net.TCPConn), dial) })
	}
}

func (l *link) relay(in *net.TCPConn, dial func(in *net.TCPConn) (*net.TCPConn, error)) {
	if !l.add(in) {
		return
	}
	out, err := dial(in)
	if err != nil || !l.add(out) {
		l.drop(in)
		return
	}
	defer l.drop(in, out)
	var other sync.WaitGroup
	other.Go(func() { pump(in, out) })
	pump(out, in)
	other.Wait()
}

func pump(to, from *net.TCPConn) {
	io.Copy(to, from)
	to.CloseWrite()
}

// dialLike connects from addr with a source port that stands for the same lane
// as port does: the far end tells up to 8 lanes apart by the port's remainder.
func dialLike(addr netip.Addr, port uint16, to netip.AddrPort) (*net.TCPConn, error) {
	last := errors.New("no port tried")
	for range 50 {
		p := 20000 + rand.N(uint16(1000))*8 + port%8
		c, err := dialFrom(netip.AddrPortFrom(addr, p), to)
		if err == nil {
			return c, nil
		}
		last = err
	}
	return nil, last
}

func dialFrom(from, to netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from)}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}
