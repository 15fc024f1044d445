package simtest

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport/sim"
)

var errAdmin = errors.New("dropped by the administrator")

// schedule starts the traffic and the faults.
func (w *World) schedule() {
	for _, n := range w.nodes {
		w.traffic(n)
	}
	for _, k := range w.kernels {
		w.kernelTraffic(k)
	}
	w.nextFault()
}

func (w *World) nextFault() {
	w.After(w.upTo(2*w.faultEvery), func() {
		if !w.calm {
			w.fault()
			w.nextFault()
		}
	})
}

// traffic lets the apps of n do something every now and then.
func (w *World) traffic(n *node) {
	w.After(w.upTo(2*w.opEvery), func() {
		if w.calm {
			return
		}
		if n.eng != nil && !n.frozen && len(n.apps) > 0 {
			w.op(n.apps[w.rng.Intn(len(n.apps))])
		}
		w.traffic(n)
	})
}

// target draws where to send.
func (w *World) target(self netip.Addr) netip.AddrPort {
	a := w.addrs[w.rng.Intn(len(w.addrs))]
	if a == self && !w.chance(4) {
		a = w.addrs[w.rng.Intn(len(w.addrs))]
	}
	port := uint16(4000 + w.rng.Intn(w.socketsPer))
	if w.chance(60) {
		port = 5000 // nobody's
	}
	return netip.AddrPortFrom(a, port)
}

func (w *World) op(a *app) {
	if a.quit {
		return
	}
	if w.hungry && w.chance(40) {
		a.quit, a.stopped = true, w.Now()+time.Hour
		w.trace("%v does nothing any more", a.addr)
		return
	}
	dst := w.target(a.addr.Addr())
	switch k := w.rng.Intn(40); {
	case k < 24: // a burst to one destination
		if a.m == nil && w.chance(3) {
			a.sendRun(dst, w.drawPost())
			break
		}
		if a.m != nil && w.chance(2) {
			a.m.drip(dst, 1+w.rng.Intn(24))
			return
		}
		for range 1 + w.rng.Intn(12) {
			if a.m != nil && !a.m.post(dst, w.drawPost()) || a.m == nil && a.send(dst, w.drawSize(), -1) != nil {
				break
			}
		}
	case k < 34:
		wait := time.Duration(0)
		if w.chance(2) {
			wait = time.Millisecond + w.upTo(time.Second)
		}
		for range 1 + w.rng.Intn(6) {
			a.send(dst, w.drawSize(), wait)
		}
	case k < 35:
		if w.isKernel(dst.Addr()) && w.chance(2) {
			dst = netip.AddrPortFrom(dst.Addr(), 0)
		}
		a.cancel(dst)
		return // cancel has run after
	case k < 36:
		a.flushes++
		a.n.lock()
		a.s.Flush(uint64(w.Now()))
	case k < 37:
		a.send(netip.AddrPortFrom(dst.Addr(), 0), 0, -1) // ping
	case k < 38:
		a.pace()
		a.arm()
	case k < 39 && w.chance(3):
		n, port, ep := a.n, a.addr.Port(), a.n.epoch
		a.close()
		w.After(w.upTo(300*time.Millisecond), func() {
			if n.epoch == ep && n.eng != nil && n.eng.Socket(port) == nil {
				n.bind(port)
				n.after()
			}
		})
		return
	default:
		a.n.lock()
		a.s.Congested(dst)
	}
	a.n.after()
}

// fault draws one fault and makes it happen.
func (w *World) fault() {
	w.faults++
	if w.vol != nil && w.chance(2) {
		w.vol.fault()
		return
	}
	x := w.addrs[w.rng.Intn(len(w.addrs))]
	y := w.addrs[w.rng.Intn(len(w.addrs))]
	w.mix(9)
	switch k := w.rng.Intn(24); {
	case k < 9:
		if e := w.anyEnd(x); e != nil {
			half := w.chance(4)
			w.trace("FAULT connection #%d is reset, half %v", e.ID(), half)
			e.Break(half)
		}
	case k < 10:
		if e := w.anyEnd(x); e != nil {
			w.trace("FAULT connection #%d hangs at %v", e.ID(), x)
			e.Hang()
		}
	case k < 13:
		d := w.upTo(5 * time.Second)
		if w.chance(2) {
			d /= 10
		}
		w.trace("FAULT %v>%v stalls for %v", x, y, d)
		w.net.Cut(x, y, max(d, 1))
		if w.vol != nil {
			w.vol.cut(x, y, max(d, 1))
		}
	case k < 15:
		d := w.upTo(4 * time.Second)
		w.trace("FAULT %v and %v are parted for %v", x, y, d)
		w.net.Cut(x, y, 0)
		w.net.Cut(y, x, 0)
		if w.vol != nil {
			w.vol.cut(x, y, 0)
			w.vol.cut(y, x, 0)
		}
		w.After(d, func() {
			w.net.HealPair(x, y)
			if w.vol != nil {
				w.vol.heal(x, y)
			}
		})
	case k < 18:
		if w.crashes {
			w.crash(x)
		}
	case k < 20:
		if n := w.byAddr[x]; n != nil {
			n.freeze(w.upTo(2 * time.Second))
		}
	case k < 22:
		if n := w.byAddr[x]; n != nil && n.eng != nil && !n.frozen {
			n.lock()
			for _, pe := range n.eng.Peers() {
				pe.Conn().EachLane(func(p *conn.Lane) {
					if w.chance(3) {
						w.trace("FAULT %v is dropped by the administrator", p)
						p.Drop(w.Now(), errAdmin)
					}
				})
			}
			n.after()
		}
	default:
		w.net.Profile = w.drawProfile()
	}
}

func (w *World) anyEnd(a netip.Addr) *sim.End {
	var l []*sim.End
	if n := w.byAddr[a]; n != nil {
		l = n.host.Ends()
	} else if k := w.kernel[a]; k != nil {
		l = k.host.Ends()
	}
	if len(l) == 0 {
		return nil
	}
	return l[w.rng.Intn(len(l))]
}

func (w *World) crash(a netip.Addr) {
	power := w.chance(3)
	down := w.upTo(2 * time.Second)
	if n := w.byAddr[a]; n != nil && n.eng != nil {
		n.crash(power)
		w.After(down, func() { w.restart(n) })
	}
	if k := w.kernel[a]; k != nil && k.running {
		k.crash()
		w.After(down, k.start)
	}
}

func (w *World) restart(n *node) {
	if n.eng == nil {
		n.host.PowerOn()
		n.start()
	}
}

// endFaults makes the network healthy from here on: every node runs, readers read, and
// nobody begins anything but one last round.
func (w *World) endFaults() {
	w.trace("the faults are over")
	w.calm = true
	w.net.Heal()
	w.net.Profile.Loss = 0
	w.net.Profile.SndBuf, w.net.Profile.RcvBuf = max(w.net.Profile.SndBuf, 1<<18), max(w.net.Profile.RcvBuf, 1<<18)
	w.net.Profile.Bandwidth = max(w.net.Profile.Bandwidth, 1<<24)
	for _, n := range w.nodes {
		w.restart(n)
	}
	if w.vol != nil {
		w.vol.calmDown()
	}
	for _, k := range w.kernels {
		if !k.running {
			k.start()
		}
	}
	for _, k := range w.kernels {
		// Maps on different paths of a kernel may overtake each other; the next
		// change puts that right.
		k.after(3*time.Second, k.sendMaps)
	}
	for _, n := range w.nodes {
		if n.frozen {
			n.w.After(0, n.guard(n.calmDown))
		} else {
			n.calmDown()
		}
	}
}

// calmDown is what the applications of n do when the faults are over.
func (n *node) calmDown() {
	w := n.w
	for _, a := range n.apps {
		a.pace()
		a.armed = false
		if a.m != nil {
			a.m.room = max(a.m.room, 64<<10) // one datagram in each round trip is progress, but slow
		}
		if w.sleeper && w.asleep == nil {
			w.asleep = a
			a.stopped = w.Now() + time.Hour
		}
		a.arm()
	}
	for i := range w.socketsPer { // ports between close and bind
		if port := uint16(4000 + i); n.eng.Socket(port) == nil {
			n.bind(port)
		}
	}
	for _, a := range n.apps {
		for _, to := range w.addrs {
			if a.quit && !w.isKernel(to) {
				continue // it reads, and says nothing; a kernel without a link may need somebody to begin
			}
			a.lastRound(netip.AddrPortFrom(to, uint16(4000+w.rng.Intn(w.socketsPer))))
		}
	}
	n.after()
}

// lastRound sends one datagram to dst. A client that posts has no send that
// waits: it posts again until there is room. Without that a node would have
// nothing to say to a kernel that lost its link and waits to be connected to,
// as the larger of two addresses does.
func (a *app) lastRound(dst netip.AddrPort) {
	if a.send(dst, 100, 30*time.Second) == rdserr.ErrWouldBlock && a.m != nil {
		n := a.n
		n.w.After(100*time.Millisecond, n.guard(func() {
			if !a.dead {
				a.lastRound(dst)
				n.after()
			}
		}))
	}
}
