package tcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Provider makes TCP links.
type Provider struct{}

var _ transport.Provider = Provider{}

// Source ports are taken at random from here, port mod 8 being the lane
// (net/rds/tcp_connect.c of kernels with SPORT_IDX does the same).
const (
	portFrom = 32768
	portTo   = 61000
	tries    = 24
)

// Dial connects; the source port's remainder by 8 is the lane.
func (Provider) Dial(ctx context.Context, local, remote netip.AddrPort, lane int) (transport.Link, error) {
	var lastErr error
	for range tries {
		port := portFrom + rand.IntN((portTo-portFrom)/wire.MaxLanes)*wire.MaxLanes + lane
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), uint16(port))), KeepAlive: -1, Control: reuse}
		c, err := d.DialContext(ctx, "tcp", remote.String())
		if err == nil {
			l, err := newLink(c.(*net.TCPConn))
			if err != nil {
				c.Close()
				return nil, err
			}
			return l, nil
		}
		lastErr = err
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) || ctx.Err() != nil {
			break
		}
	}
	return nil, lastErr
}

// reuse lets connections to different peers share a source port: a lane has
// only an eighth of the range, and a node may have more peers than that.
func reuse(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}); e != nil {
		return e
	}
	return err
}

type listener struct {
	l    *net.TCPListener
	done sync.WaitGroup
}

// Listen accepts on local.
func (Provider) Listen(local netip.AddrPort, accept func(transport.Link)) (transport.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	nl, err := lc.Listen(context.Background(), "tcp", local.String())
	if err != nil {
		return nil, err
	}
	l := &listener{l: nl.(*net.TCPListener)}
	l.done.Add(1)
	go l.serve(accept)
	return l, nil
}

// serve ends when the listener is closed.
func (l *listener) serve(accept func(transport.Link)) {
	defer l.done.Done()
	for {
		c, err := l.l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors: others will be closed
			continue
		}
		k, err := newLink(c)
		if err != nil {
			c.Close()
			continue
		}
		accept(k)
	}
}

func (l *listener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

func (l *listener) Close() error {
	err := l.l.Close()
	l.done.Wait()
	return err
}
