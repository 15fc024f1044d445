package tcp

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Provider makes TCP links, each of which belongs to one of its reactors.
type Provider struct {
	// BufferBytes bounds the bytes of a link that TCP itself holds at the sender, and a
	// third more at the receiver; with 0 the kernel sizes its buffers, up to several MiB.
	// Bytes there cannot be overtaken by another flow of the path. Set it before the first
	// link.
	BufferBytes int

	// Congestion is the congestion control of the connections, such as "cubic";
	// "": the kernel's default. One that cannot be had is left out without a word:
	// see CheckCongestion. Set it before the first link.
	Congestion string

	// Log, AcceptFailed and Reserve are those of the listeners' loops; see
	// accept.Listener. Each may be nil. Set them before the first listener.
	Log          *slog.Logger
	AcceptFailed *atomic.Uint64
	Reserve      *accept.Reserve

	// Guard contains panics of what this package's goroutines do for one connection. Panics
	// on reactors are contained by theirs. With nil none is.
	Guard *guard.Guard

	// Room tells why there may be no further connection; nil: there always may. One
	// that was accepted is closed then. Set it before the first link.
	Room func() error

	// Check, when not nil, judges each connection that DialOneSided has made,
	// before anything is sent; its error ends it. Set it before the first link.
	Check func(ctx context.Context, local, remote netip.AddrPort) error

	// Admit, when not nil, is asked about each connection that a listener of one-sided links
	// accepts, before anything is read; an error closes it. Otherwise said is called once:
	// with the request to connect when that has come, and it is false if said has answered
	// it, or with nil when the connection ends before. Until then abort closes it, from any
	// goroutine. With nil all are taken, however many: that is for tests. Set it before the
	// first listener.
	Admit func(local, remote netip.AddrPort, abort func()) (said func(transport.ConnRequest) bool, err error)

	loops []*loop
	next  atomic.Uint32 // whose turn it is

	connecting func() // called, if it is not nil, before a socket connects; for tests
}

var _ transport.Provider = (*Provider)(nil)

// New makes a provider whose links are served by the reactors in turn. The
// reactors must outlive the links.
func New(reactors ...*reactor.Reactor) *Provider {
	p := &Provider{}
	for _, r := range reactors {
		p.loops = append(p.loops, &loop{r: r})
	}
	return p
}

func (p *Provider) loop() *loop { return p.loops[int(p.next.Add(1))%len(p.loops)] }

// Source ports are taken at random from here, port mod 8 being the lane
// (net/rds/tcp_connect.c of kernels with SPORT_IDX does the same).
const (
	portFrom = 32768
	portTo   = 61000
	tries    = 24
)

// Dial connects; the source port's remainder by 8 is the lane.
func (p *Provider) Dial(ctx context.Context, local, remote netip.AddrPort, lane int) (transport.Link, error) {
	if err := p.room(); err != nil {
		return nil, err
	}
	var lastErr error
	for range tries {
		port := portFrom + rand.IntN((portTo-portFrom)/wire.MaxLanes)*wire.MaxLanes + lane
		c, err := p.connect(ctx, netip.AddrPortFrom(local.Addr(), uint16(port)), remote)
		if err == nil {
			l, err := newLink(p.loop(), c, p.BufferBytes)
			if err != nil {
				return nil, err // not a nil *Link in the interface
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

// connect makes one connection. One that stands is taken also if ctx has ended: this process may have
// stood still until then, or the peer have answered in the last moment. A kernel sends on it what it
// has, and forgets what our TCP acknowledges, but net.Dialer closes it. So the socket has a second
// descriptor here, of which the Dialer does not know.
func (p *Provider) connect(ctx context.Context, local, remote netip.AddrPort) (*net.TCPConn, error) {
	second := -1
	prepare := p.control(true)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(local), KeepAlive: -1, Control: func(network, to string, raw syscall.RawConn) error {
		_ = raw.Control(func(fd uintptr) {
			// Where there is no descriptor for it, a late connection is closed.
			if n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				second = n
			}
		})
		return prepare(network, to, raw)
	}}
	c, err := d.DialContext(ctx, "tcp", remote.String())
	if err == nil {
		if second >= 0 {
			unix.Close(second)
		}
		return c.(*net.TCPConn), nil
	}
	if second < 0 {
		return nil, err
	}
	if _, none := unix.Getpeername(second); none != nil {
		unix.Close(second)
		return nil, err
	}
	f := os.NewFile(uintptr(second), "connection")
	defer f.Close()
	late, lost := net.FileConn(f)
	if lost != nil {
		return nil, err
	}
	return late.(*net.TCPConn), nil
}

// control prepares a socket that will connect or listen; accepted ones inherit the
// congestion control. Reuse lets connections to different peers share a source port: a path
// has only an eighth of the range, and a node may have more peers than that.
func (p *Provider) control(reuse bool) func(_, _ string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			if p.Congestion != "" {
				_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, p.Congestion)
			}
			if reuse {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				if p.connecting != nil {
					p.connecting()
				}
			}
		}); e != nil {
			return e
		}
		return err
	}
}

// CheckCongestion tells whether this process may use a congestion control:
// ENOENT, the kernel does not have it; EPERM, it is not among
// net.ipv4.tcp_allowed_congestion_control.
func CheckCongestion(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return os.NewSyscallError("setsockopt TCP_CONGESTION", unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name))
}

func (p *Provider) room() error {
	if p.Room == nil {
		return nil
	}
	return p.Room()
}

// acceptor is a listener whose loop no error ends.
func (p *Provider) acceptor(l net.Listener, what string) *accept.Listener {
	a := accept.New(l, what, p.Log)
	a.Failed, a.Reserve = p.AcceptFailed, p.Reserve
	return a
}

// take accepts a connection that there is room for; nil: the listener is closed.
func (p *Provider) take(l *accept.Listener) *net.TCPConn {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		if p.room() == nil {
			return c.(*net.TCPConn)
		}
		c.Close()
	}
}

type listener struct {
	p    *Provider
	l    *accept.Listener
	done sync.WaitGroup
}

// Listen accepts on local.
func (p *Provider) Listen(local netip.AddrPort, taken func(transport.Link)) (transport.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1, Control: p.control(false)}
	lc.SetMultipathTCP(false) // Go asks for it; the counts of TCP_INFO would be a subflow's
	nl, err := lc.Listen(context.Background(), "tcp", local.String())
	if err != nil {
		return nil, err
	}
	l := &listener{p: p, l: p.acceptor(nl, "peers")}
	l.done.Add(1)
	go l.serve(taken)
	return l, nil
}

// serve ends when the listener is closed.
func (l *listener) serve(taken func(transport.Link)) {
	defer l.done.Done()
	defer l.p.Guard.Recover(guard.Step, nil) // no peer would be heard any more
	for {
		c := l.p.take(l.l)
		if c == nil {
			return
		}
		k, err := newLink(l.p.loop(), c, l.p.BufferBytes)
		if err != nil {
			continue
		}
		if err := l.p.Guard.Do(guard.Accept, func() {
			guard.Point("accept")
			taken(k)
		}); err != nil {
			k.Abort()
		}
	}
}

func (l *listener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

func (l *listener) Close() error {
	err := l.l.Close()
	l.done.Wait()
	return err
}
