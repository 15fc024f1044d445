package sim

import (
	"math/rand"
	"net/netip"
	"syscall"
	"time"
)

// Profile is the weather between hosts.
type Profile struct {
	Latency   time.Duration // one way
	Jitter    time.Duration // added at random, up to
	Bandwidth int           // bytes per second and direction of a connection
	SndBuf    int           // bytes written and not acknowledged, at most
	RcvBuf    int           // bytes arrived and not read, at most
	Chop      int           // one write in Chop is cut into small pieces; 0: none
	Loss      float64       // probability that a segment is lost and comes an RTO later
	AckDelay  time.Duration // an acknowledgement waits at random, up to
}

// Numbers of TCP as the simulation has it.
const (
	rtoMin      = 200 * time.Millisecond
	rtoMax      = 6 * time.Second
	synRetry    = time.Second
	userTimeout = 40 * time.Second // bytes unacknowledged for so long end the connection
)

// Errors a connection ends with.
var (
	ErrReset   error = syscall.ECONNRESET
	ErrTimeout error = syscall.ETIMEDOUT
	ErrRefused error = syscall.ECONNREFUSED
	ErrClosed  error = syscall.EPIPE
)

// Net holds all hosts and the network between them.
type Net struct {
	*Clock
	Profile Profile
	rng     *rand.Rand
	hosts   map[netip.Addr]*Host
	cuts    map[pair]time.Duration // direction → until when nothing passes
	ids     int
}

type pair struct{ from, to netip.Addr }

// forever is the length of a cut that lasts until Heal.
const forever = time.Duration(1<<62 - 1)

// NewNet makes an empty network. rng is the world's.
func NewNet(c *Clock, rng *rand.Rand, p Profile) *Net {
	return &Net{Clock: c, Profile: p, rng: rng, hosts: map[netip.Addr]*Host{}, cuts: map[pair]time.Duration{}}
}

// Host is one machine with one address.
type Host struct {
	n      *Net
	Addr   netip.Addr
	Accept func(e *End, from netip.AddrPort) // nil: there is no listener
	up     bool
	epoch  int // changes when the program, or the machine, goes
	ends   []*End
}

// AddHost adds a running machine.
func (n *Net) AddHost(a netip.Addr) *Host {
	h := &Host{n: n, Addr: a, up: true}
	n.hosts[a] = h
	return h
}

// Cut stops everything from one host to another until Heal, or for d if that
// is above 0. The other direction is not touched.
func (n *Net) Cut(from, to netip.Addr, d time.Duration) {
	until := forever
	if d > 0 {
		until = n.now + d
	}
	n.cuts[pair{from, to}] = max(until, n.cuts[pair{from, to}])
}

// Heal ends every cut.
func (n *Net) Heal() { clear(n.cuts) }

// HealPair ends the cuts between two hosts.
func (n *Net) HealPair(a, b netip.Addr) {
	delete(n.cuts, pair{a, b})
	delete(n.cuts, pair{b, a})
}

// Parted reports whether nothing passes from one host to another.
func (n *Net) Parted(from, to netip.Addr) bool { return n.cutUntil(from, to) > n.now }

// cutUntil is when something from one host to another passes again; now: it does.
func (n *Net) cutUntil(from, to netip.Addr) time.Duration {
	if t, ok := n.cuts[pair{from, to}]; ok && t > n.now {
		return t
	}
	return n.now
}

func (n *Net) latency() time.Duration {
	d := n.Profile.Latency
	if n.Profile.Jitter > 0 {
		d += time.Duration(n.rng.Int63n(int64(n.Profile.Jitter)))
	}
	return d
}

// Dial opens a connection from port src. done is called once, with the end or
// an error, unless the host's program is gone by then. After timeout the
// attempt has failed with ErrTimeout.
func (h *Host) Dial(src uint16, to netip.Addr, timeout time.Duration, done func(*End, error)) {
	d := &dial{h: h, epoch: h.epoch, src: src, to: to, deadline: h.n.now + timeout, done: done, wait: synRetry}
	d.syn()
}

type dial struct {
	h        *Host
	epoch    int
	src      uint16
	to       netip.Addr
	deadline time.Duration
	wait     time.Duration
	done     func(*End, error)
}

func (d *dial) syn() {
	n := d.h.n
	if d.h.epoch != d.epoch {
		return
	}
	if n.now >= d.deadline {
		d.done(nil, ErrTimeout)
		return
	}
	there, back := n.latency(), n.latency()
	peer := n.hosts[d.to]
	// SYN or its answer is lost, and TCP asks again, each time after twice as long.
	if n.cutUntil(d.h.Addr, d.to) > n.now || n.cutUntil(d.to, d.h.Addr) > n.now || peer == nil || !peer.up {
		w := min(d.wait, d.deadline-n.now)
		d.wait *= 2
		n.After(w, d.syn)
		return
	}
	n.After(there, func() {
		// The machine went down while the SYN was on its way.
		if !peer.up {
			n.After(max(0, min(d.wait, d.deadline-n.now)), d.syn)
			return
		}
		if peer.Accept == nil {
			n.After(back, func() {
				if d.h.epoch == d.epoch {
					d.done(nil, ErrRefused)
				}
			})
			return
		}
		if d.h.epoch != d.epoch {
			return
		}
		a, b := n.connect(d.h, peer)
		epoch := peer.epoch
		n.After(back, func() {
			if d.h.epoch == d.epoch {
				d.done(a, nil)
			}
		})
		// The listener learns of it with the last ACK, and accepts some time later: after the end
		// that connected, or about then.
		n.After(back+there+time.Duration(n.rng.Int63n(int64(time.Millisecond))), func() {
			if peer.epoch == epoch && peer.Accept != nil {
				peer.Accept(b, netip.AddrPortFrom(d.h.Addr, d.src))
			}
		})
	})
}

func (n *Net) connect(x, y *Host) (a, b *End) {
	n.ids++
	a = &End{n: n, id: n.ids, h: x}
	b = &End{n: n, id: n.ids, h: y}
	a.peer, b.peer = b, a
	a.out = &pipe{n: n, from: a, to: b}
	b.out = &pipe{n: n, from: b, to: a}
	a.in, b.in = b.out, a.out
	x.keep(a)
	y.keep(b)
	return a, b
}

func (h *Host) keep(e *End) {
	if len(h.ends) > 64 {
		live := h.ends[:0]
		for _, e := range h.ends {
			if !e.closed && !e.vanished {
				live = append(live, e)
			}
		}
		clear(h.ends[len(live):])
		h.ends = live
	}
	h.ends = append(h.ends, e)
}

// Kill ends the program: its system closes all its connections, with RST where bytes were
// unread, with FIN elsewhere. Accept is to be set again.
func (h *Host) Kill() {
	h.epoch++
	h.Accept = nil
	ends := h.ends
	h.ends = nil
	for _, e := range ends {
		e.Readable, e.Writable = nil, nil
		e.Close()
	}
}

// PowerOff takes the machine away without a packet to its peers.
func (h *Host) PowerOff() {
	h.epoch++
	h.Accept = nil
	h.up = false
	for _, e := range h.ends {
		e.vanished = true
		e.Readable, e.Writable = nil, nil
		e.out.purge()
	}
	h.ends = nil
}

// PowerOn brings the machine back; it knows none of its former connections.
func (h *Host) PowerOn() { h.up = true }

// Up reports whether the machine runs.
func (h *Host) Up() bool { return h.up }

// Ends returns the host's connections that still live, oldest first.
func (h *Host) Ends() (l []*End) {
	for _, e := range h.ends {
		if !e.closed && !e.vanished && e.err == nil {
			l = append(l, e)
		}
	}
	return l
}
