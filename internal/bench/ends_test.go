package bench

import (
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Simulated ends: one process that is many peers, each an address of loopback
// with an engine of its own, which shakes hands, counts what comes to port 4000
// and acknowledges. One thread serves them all; what it costs is the same for
// each frame, however many peers there are, so that a rate to all of them
// against the rate to one is about the daemon that sends.

var roleEnds = register("simulated ends", runEnds)

// endAddr is larger than the address of any daemon here: the daemon connects.
func endAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 110, byte(i / 250), byte(i%250 + 1)})
}

const endPort = 4000

// rdsdPeers measures one sender to port 4000 of so many peers.
func rdsdPeers(peers, batch int, front string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		a, ends, err := w.peers(peers, front)
		if err != nil {
			return sample{}, err
		}
		a.Batch = batch
		if _, err := w.role(roleSpread, a); err != nil {
			return sample{}, err
		}
		// All connections are made first: every peer has been sent something.
		err = w.until("every peer is reached", func() bool { return ends.board.load(wordOthers) == uint64(peers) })
		if err != nil {
			return sample{}, err
		}
		return w.window(ends, wordCount, d)
	}
}

// rdsdIdle measures what a daemon with so many connected peers and bound
// sockets takes of a core while nothing happens.
func rdsdIdle(peers, sockets int, front string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(13 * d)
		defer w.close()
		a, ends, err := w.peers(peers, front)
		if err != nil {
			return sample{}, err
		}
		b := a
		b.Local, b.Sockets, b.Dst, b.Buffer = nodeA+":5000", sockets, nil, 64<<10
		idle, err := w.role(roleRecv, b)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(idle); err != nil {
			return sample{}, err
		}
		a.Stopped, a.Batch = true, 1
		if _, err := w.role(roleSpread, a); err != nil {
			return sample{}, err
		}
		err = w.until("every peer is reached", func() bool { return ends.board.load(wordOthers) == uint64(peers) })
		if err != nil {
			return sample{}, err
		}
		time.Sleep(d) // acknowledgements, and loops that look for a while
		rdsd := w.procs[0]
		c0, begun := rdsd.cpu(), time.Now()
		time.Sleep(12 * d) // heartbeats are 10 s apart
		return sample{rate: 1, busy: float64(rdsd.cpu()-c0) / float64(time.Since(begun))}, w.dead()
	}
}

// peers starts a daemon and so many ends, and says how to send to them.
func (w *world) peers(n int, front string) (args, *proc, error) {
	ds, err := w.daemons(nodeA)
	if err != nil {
		return args{}, nil, err
	}
	a := args{Bytes: 64, FrontEnd: front, Collector: true, Batch: 256, Target: ds[0].target, Local: nodeA + ":0", Port: ds[0].port,
		Sockets: n, Buffer: 4 << 20}
	ends, err := w.role(roleEnds, a)
	if err != nil {
		return args{}, nil, err
	}
	for i := range n {
		a.Dst = append(a.Dst, netip.AddrPortFrom(endAddr(i), endPort).String())
	}
	return a, ends, w.ready(ends)
}

// end is one peer.
type end struct {
	e      *rds.Engine
	sock   *rds.Socket
	listen int
	links  map[*conn.Lane]*endLink
	// Placed since the last ReadAll.
	n, bytes int
	reached  bool
}

// endLink is one connection of it.
type endLink struct {
	end    *end
	fd     int
	p      *conn.Lane
	gen    uint64
	framer transport.Framer
}

// ends is all of them.
type ends struct {
	role   *role
	epoll  int
	begun  time.Time
	list   []*end
	byFD   map[int32]any // *end: its listener; *endLink
	buf    []byte
	orders rds.Orders
	count  uint64
}

func runEnds(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	moreFiles()
	s := &ends{role: r, begun: time.Now().Add(-time.Hour), byFD: map[int32]any{}, buf: make([]byte, 256<<10)}
	var err error
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	cfg := rds.DefaultConfig()
	for i := range r.Sockets {
		if err := s.add(&cfg, i); err != nil {
			return fmt.Errorf("end %d: %w", i, err)
		}
	}
	r.board.set(wordReady, 1)
	return s.run()
}

func (s *ends) now() time.Duration { return time.Since(s.begun) }

func (s *ends) add(cfg *rds.Config, i int) error {
	n := &end{links: map[*conn.Lane]*endLink{}}
	n.e = rds.NewEngine(cfg, endAddr(i), rand.New(rand.NewSource(int64(i+1))))
	var err error
	if n.sock, err = n.e.Bind(endPort, rds.SocketOptions{Sink: n}); err != nil {
		return err
	}
	if n.listen, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	congestion(n.listen)
	if err := unix.Bind(n.listen, &unix.SockaddrInet4{Addr: endAddr(i).As4(), Port: s.role.Port}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(n.listen, 64); err != nil {
		return os.NewSyscallError("listen", err)
	}
	s.list = append(s.list, n)
	return s.watch(n.listen, n)
}

func (s *ends) watch(fd int, who any) error {
	s.byFD[int32(fd)] = who
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// run serves whatever is ready, and timers every two milliseconds.
func (s *ends) run() error {
	evs := make([]unix.EpollEvent, 256)
	idle := idler{budget: spinFor}
	ticked := s.now()
	wait := 0
	for {
		n, err := unix.EpollWait(s.epoll, evs, wait)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		wait = 0
		for _, ev := range evs[:max(n, 0)] {
			switch who := s.byFD[ev.Fd].(type) {
			case *end:
				if err := s.accept(who); err != nil {
					return err
				}
			case *endLink:
				s.read(who)
			}
		}
		if now := s.now(); now-ticked >= 2*time.Millisecond {
			ticked = now
			for _, n := range s.list {
				if at, _ := n.e.End(); at <= now {
					n.e.Tick(n.e.Begin(now))
					s.carryOut(n)
				}
			}
		}
		if n > 0 {
			idle.busy()
		} else if idle.idle() {
			wait = 2
			idle.busy()
		}
	}
}

func (s *ends) accept(n *end) error {
	for {
		fd, from, err := unix.Accept4(n.listen, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == unix.EAGAIN {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		in := from.(*unix.SockaddrInet4)
		a, err := n.e.Accept(n.e.Begin(s.now()), netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)))
		if err != nil || !a.Link || a.Parked {
			unix.Close(fd)
			continue
		}
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		l := &endLink{end: n, fd: fd, p: a.Lane, gen: a.Attempt}
		l.framer.Max = wire.MaxDatagram
		n.links[a.Lane] = l
		if err := s.watch(fd, l); err != nil {
			return err
		}
		s.carryOut(n)
	}
}

// read takes what there is, of one read.
func (s *ends) read(l *endLink) {
	n := l.end
	m, err := recv(l.fd, s.buf)
	if m < 0 {
		return
	}
	now := n.e.Begin(s.now())
	if m == 0 || err != nil {
		s.lose(l, now, err)
		return
	}
	_, err = l.framer.Feed(s.buf[:m], func(f *transport.Frame) error { return l.p.Receive(now, l.gen, f) })
	if err != nil {
		s.lose(l, now, err)
		return
	}
	if n.n > 0 {
		n.sock.Freed(n.bytes, 0, n.n)
		n.sock.ReadAll(now)
		s.count += uint64(n.n)
		s.role.board.set(wordCount, s.count)
		if !n.reached {
			n.reached = true
			s.role.board.add(wordOthers, 1)
		}
		n.n, n.bytes = 0, 0
	}
	l.p.ReceivedAll(now, l.gen)
	s.carryOut(n)
}

func (s *ends) lose(l *endLink, now time.Duration, err error) {
	delete(s.byFD, int32(l.fd))
	unix.Close(l.fd)
	if l.end.links[l.p] == l {
		delete(l.end.links, l.p)
	}
	l.p.Lost(now, l.gen, 0, err)
	s.carryOut(l.end)
}

// carryOut does what the engine ordered. It never connects: the daemon does.
func (s *ends) carryOut(n *end) {
	for _, ordered := n.e.End(); ordered; _, ordered = n.e.End() {
		n.e.Take(&s.orders)
		for _, a := range s.orders.Actions {
			l := n.links[a.Lane]
			switch {
			case l == nil || a.Kind != conn.ActKick && a.Attempt != l.gen:
			case a.Kind == conn.ActKick:
				s.transmit(l)
			case a.Kind == conn.ActClose || a.Kind == conn.ActAbort:
				s.lose(l, s.now(), a.Why)
			}
		}
	}
}

// transmit writes acknowledgements, which are small: a full socket is waited for.
func (s *ends) transmit(l *endLink) {
	b := transport.GetBatch()
	defer b.Put()
	for l.p.Fill(s.now(), b) {
		for _, p := range b.Pieces {
			for len(p) > 0 {
				n, err := send(l.fd, p)
				if err != nil {
					p = nil // the reading will see it
				} else if n < 0 {
					poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}})
				}
				p = p[max(0, min(n, len(p))):]
			}
		}
		b.Reset()
		if !l.p.Wrote(s.now()) {
			break
		}
	}
}

// --- end as a rds.Sink: it counts -----------------------------------------------------

// Place has room for everything.
func (n *end) Place(_ *rds.Peer, a conn.Arrival) (int, bool) {
	n.n += a.Train.Count
	n.bytes += a.Train.PayloadBytes()
	return 0, true
}

// Done is not called: an end sends nothing.
func (n *end) Done(rds.Decided) {}

// Spent is not called either.
func (n *end) Spent(uint32, int) {}

// Drained has nothing to do.
func (n *end) Drained() {}

// WantRoom has nobody to tell.
func (n *end) WantRoom(bool) {}

// Changed is not called: an end has no destination.
func (n *end) Changed(*rds.Dest, bool) {}

// Each has nothing unread.
func (n *end) Each(func(netip.AddrPort, int) bool) {}
