package simtest

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/transport/sim"
	"github.com/rdsd/rdsd/wire"
)

// kernel is a model of a Linux node with rds and rds_tcp, written from what is
// known of them and not from package conn: 6.1 (legacy: maps connections to
// paths by order of accept and says NPATHS=8 alone) and later ones (newer:
// GEN_NUM, SPORT_IDX, paths by source port, a ping on every reconnect).
//
// It does to itself what kernels do: what TCP acknowledged is forgotten, a
// crash loses everything, a new connection is refused while the old one is
// believed up, and a larger address pokes only when something is sent.
type kernel struct {
	w       *World
	addr    netip.Addr
	host    *sim.Host
	newer   bool
	noPing  bool // ping_enable 0
	epoch   int
	running bool
	gen     uint32
	conns   map[netip.Addr]*kconn
	order   []*kconn
	socks   map[uint16]*ksock
	cmap    [8192]byte
}

// ksock is one bound socket. The soft limit is the only one.
type ksock struct {
	k         *kernel
	port      uint16
	rcvBuf    int
	queued    []int // sizes
	bytes     int
	congested bool
	every     time.Duration
}

// kconn is everything between two addresses.
type kconn struct {
	k       *kernel
	peer    netip.Addr
	smaller bool // we connect
	npaths  int  // 0 unknown
	paths   [8]*kpath
	parked  []kparked // newer: connections that wait for their path
	fan     []*kmsg   // newer: sent while the paths drain, before more of them are used
	growing bool
	pinged  bool
	pmap    [8192]byte
}

type kparked struct {
	e    *sim.End
	port uint16
}

// kmsg is one message of a path.
type kmsg struct {
	rec          *rec
	payload      []byte
	sport, dport uint16
	ext          [wire.ExtLen]byte
	flags        uint8
	seq          uint64
	end          uint64 // offset behind its last byte
}

func (w *World) addKernel(a netip.Addr, newer bool) {
	k := &kernel{w: w, addr: a, newer: newer, host: w.net.AddHost(a)}
	k.noPing = !newer && w.chance(6)
	w.kernels = append(w.kernels, k)
	w.kernel[a] = k
}

// mayForget reports whether the model of this peer may make an outcome unknown without a
// restart. No model does.
func (w *World) mayForget(netip.Addr) bool { return false }

func (k *kernel) start() {
	if k.running {
		return
	}
	w := k.w
	k.host.PowerOn()
	k.epoch++
	k.running = true
	k.gen = w.rng.Uint32() | 1
	k.conns, k.order, k.socks, k.cmap = map[netip.Addr]*kconn{}, nil, map[uint16]*ksock{}, [8192]byte{}
	w.trace("kernel %v boots (%d), newer %v, no ping %v", k.addr, k.epoch, k.newer, k.noPing)
	for i := range w.socketsPer {
		port := uint16(4000 + i)
		s := &ksock{k: k, port: port, rcvBuf: 1 << (12 + w.rng.Intn(9)), every: w.upTo(5 * time.Millisecond)}
		k.socks[port] = s
		w.m.ports[netip.AddrPortFrom(k.addr, port)]++
	}
	k.host.Accept = k.accept
}

func (k *kernel) crash() {
	k.w.trace("kernel %v crashes", k.addr)
	k.running = false
	k.host.PowerOff()
	for i := range k.w.socketsPer {
		k.w.m.ports[netip.AddrPortFrom(k.addr, uint16(4000+i))]++
	}
}

// guard makes an event of this boot.
func (k *kernel) guard(f func()) func() {
	ep := k.epoch
	return func() {
		if k.running && k.epoch == ep {
			f()
		}
	}
}

func (k *kernel) after(d time.Duration, f func()) { k.w.After(d, k.guard(f)) }

func (k *kernel) conn(peer netip.Addr) *kconn {
	c := k.conns[peer]
	if c == nil {
		c = &kconn{k: k, peer: peer, smaller: k.addr.Less(peer)}
		for i := range c.paths {
			c.paths[i] = &kpath{c: c, idx: i, nextTx: 1}
		}
		k.conns[peer] = c
		k.order = append(k.order, c)
	}
	return c
}

// --- connections in ------------------------------------------------------------

// accept is rds_tcp_accept_one. A connection from a larger address is a poke.
func (k *kernel) accept(e *sim.End, from netip.AddrPort) {
	c := k.conn(from.Addr())
	if c.smaller {
		e.Close()
		if max(c.npaths, 1) == 1 {
			c.paths[0].connectIfDown()
		}
		return
	}
	if p := c.slot(from.Port()); p != nil {
		p.connected(e, from.Port())
		return
	}
	if k.newer {
		c.parked = append(c.parked, kparked{e, from.Port()})
		return
	}
	e.Close()
}

// slot finds the path an incoming connection may take, nil when it is in use.
func (c *kconn) slot(port uint16) *kpath {
	n := max(c.npaths, 1)
	if c.k.newer {
		if p := c.paths[int(port)%n]; p.state != kUp {
			return p
		}
		return nil
	}
	for _, p := range c.paths[:n] {
		if p.state != kUp {
			return p
		}
	}
	return nil
}

// unpark gives waiting connections their path once it is free.
func (c *kconn) unpark() {
	l := c.parked
	c.parked = nil
	for _, w := range l {
		if p := c.slot(w.port); p != nil {
			p.connected(w.e, w.port)
		} else {
			c.parked = append(c.parked, w)
		}
	}
}

// --- sockets ---------------------------------------------------------------------

// send is sendmsg with MSG_DONTWAIT.
func (s *ksock) send(dst netip.AddrPort, size int) {
	k, w := s.k, s.k.w
	c := k.conn(dst.Addr())
	if c.pmap[dst.Port()/8]&(1<<(dst.Port()%8)) != 0 {
		return // ENOBUFS
	}
	r := w.m.make(netip.AddrPortFrom(k.addr, s.port), dst, size)
	r.accepted, r.epoch = true, k.epoch
	if size == 0 {
		r.flow.anonSent++
	}
	w.m.total.accepted++
	if w.verbose != nil {
		w.trace("kernel %v sends %v", k.addr, r)
	}
	c.queue(&kmsg{rec: r, payload: r.payload, sport: s.port, dport: dst.Port()})
}

// take puts a datagram into the receive queue, whatever its length.
func (s *ksock) take(n int) {
	s.queued = append(s.queued, n)
	s.bytes += n
	if len(s.queued) == 1 {
		s.k.after(s.every, s.read)
	}
	s.mark()
}

func (s *ksock) read() {
	n := min(len(s.queued), 1+s.k.w.rng.Intn(8))
	if s.k.w.calm {
		n = len(s.queued)
	}
	for _, b := range s.queued[:n] {
		s.bytes -= b
	}
	s.queued = s.queued[n:]
	if len(s.queued) > 0 {
		s.k.after(s.every, s.read)
	}
	s.mark()
}

// mark keeps the congestion bit: above the buffer on, below half of it off.
func (s *ksock) mark() {
	on := s.congested
	if s.bytes > s.rcvBuf {
		on = true
	} else if s.bytes < s.rcvBuf/2 || len(s.queued) == 0 {
		on = false
	}
	if on == s.congested {
		return
	}
	s.congested = on
	s.k.cmap[s.port/8] ^= 1 << (s.port % 8)
	for _, c := range s.k.order {
		for _, p := range c.paths {
			if p.state == kUp {
				p.mapDue = true
				p.xmit()
				break
			}
		}
	}
}

func (k *kernel) sendMaps() {
	for _, c := range k.order {
		for _, p := range c.paths {
			if p.state == kUp {
				p.mapDue = true
				p.xmit()
			}
		}
	}
}

// --- the end ---------------------------------------------------------------------

func (k *kernel) settled() (bool, string) {
	if !k.running {
		return false, "a kernel is down"
	}
	for _, c := range k.order {
		for _, w := range c.parked {
			if w.e.Buffered() > 0 {
				return false, k.w.text("kernel %v keeps a connection with data waiting", k.addr)
			}
		}
		if len(c.fan) > 0 {
			return false, k.w.text("kernel %v has %d messages for %v before fan-out", k.addr, len(c.fan), c.peer)
		}
		for _, p := range c.paths {
			if n := len(p.queue) + len(p.retrans); n > 0 {
				return false, k.w.text("kernel %v has %d messages for %v on path %d, state %d", k.addr, n, c.peer, p.idx, p.state)
			}
		}
	}
	for _, s := range k.socks {
		if len(s.queued) > 0 {
			return false, k.w.text("kernel %v:%d has unread datagrams", k.addr, s.port)
		}
	}
	return true, ""
}

// judge checks that everything the kernel sent has arrived, unless a crash or a closed port
// took it.
func (k *kernel) judge() {
	w := k.w
	for _, f := range w.m.byID {
		if f.src.Addr() != k.addr {
			continue
		}
		for _, r := range f.recs {
			if r.size == 0 || r.placed > 0 || r.epoch != k.epoch || f.dst.Port() < 2 {
				continue
			}
			if k.epoch > 1 && r.resent {
				continue // a rebooted kernel numbers from 1 again: flagged, that is old (net/rds/recv.c)
			}
			if w.epochOf(f.dst.Addr()) == r.rcvEpoch && w.m.ports[f.dst] == r.portEpoch && r.portEpoch%2 == 1 {
				w.fail("D12: %v of a kernel never arrived", r)
			}
		}
	}
}

// kernelTraffic lets the sockets of k send.
func (w *World) kernelTraffic(k *kernel) {
	w.After(w.upTo(2*w.opEvery), func() {
		if w.calm {
			return
		}
		if k.running {
			n := w.nodes[w.rng.Intn(len(w.nodes))]
			dst := netip.AddrPortFrom(n.addr, uint16(4000+w.rng.Intn(w.socketsPer)))
			s := k.socks[uint16(4000+w.rng.Intn(w.socketsPer))]
			switch {
			case w.chance(20):
				k.conn(n.addr).queue(&kmsg{sport: s.port}) // rds-ping
			default:
				for range 1 + w.rng.Intn(8) {
					s.send(dst, w.drawSize())
				}
			}
		}
		w.kernelTraffic(k)
	})
}
