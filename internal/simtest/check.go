package simtest

import (
	"net/netip"

	"github.com/rdsd/rdsd/conn"
)

// check compares the node with what must hold at every instant.
func (n *node) check() {
	w := n.w
	if n.depth > 0 || n.locked || n.eng == nil {
		return
	}
	for _, a := range n.apps {
		i := a.s.Info()
		st := &i.Stats
		if st.Accepted != st.Delivered+st.Cancelled+st.Failed+st.Unknown+uint64(i.Undecided) {
			w.fail("D3: %v: %d accepted, %d delivered, %d cancelled, %d failed, %d unknown, %d in flight", a.addr, st.Accepted, st.Delivered, st.Cancelled, st.Failed, st.Unknown, i.Undecided)
		}
		if !a.late && st.Accepted != a.accepted {
			w.fail("D3: %v: %d accepted, the model has %d", a.addr, st.Accepted, a.accepted)
		}
		if a.want && !a.late && a.told != st.Accepted-uint64(i.Undecided) {
			w.fail("D3: %v: %d decided, %d reported", a.addr, st.Accepted-uint64(i.Undecided), a.told)
		}
		if m := a.m; m != nil {
			if i.RecvMem != m.used || i.RecvN != m.out {
				w.fail("D8: %v has %d datagrams and %d bytes, its memory holds %d and %d", a.addr, i.RecvN, i.RecvMem, m.out, m.used)
			}
		} else if i.RecvMem > i.Hard {
			w.fail("D8: %v holds %d bytes, its hard limit is %d", a.addr, i.RecvMem, i.Hard)
		}
		if !a.late && i.Waiting != a.waiting {
			w.fail("D3: %v: %d sends wait, the model has %d", a.addr, i.Waiting, a.waiting)
		}
		if i.SendQueued < 0 || i.RecvQueued < 0 || i.Undecided < 0 || i.Held < 0 || i.Held > i.Undecided {
			w.fail("M1: %v: an account is negative: %+v", a.addr, i)
		}
	}
	if b := n.cfg.Budget; b.Used() > b.Limit || b.Used() < 0 {
		w.fail("M1: %v: %d of %d bytes of the budget", n.addr, b.Used(), b.Limit)
	}
	for _, pe := range n.eng.Peers() {
		pe.Conn().EachLane(func(p *conn.Lane) {
			if p.Paused() && pe.Conn().Kind() == conn.KindRdsd {
				w.fail("D9: %v, a link to an rdsd, is paused", p)
			}
		})
	}
}

func (w *World) isKernel(a netip.Addr) bool { return w.kernel[a] != nil }

func (w *World) mayDouble(src, dst netip.Addr) bool { return w.isKernel(src) || w.isKernel(dst) }

// epochOf returns the incarnation of the node that has the address.
func (w *World) epochOf(a netip.Addr) int {
	if n := w.byAddr[a]; n != nil {
		return n.epoch
	}
	if k := w.kernel[a]; k != nil {
		return k.epoch
	}
	return 0
}

// settled reports whether everything is decided and every wanted link is up;
// why names the first thing that is not.
func (w *World) settled() (ok bool, why string) {
	for _, n := range w.nodes {
		if ok, why := n.settled(); !ok {
			return false, why
		}
	}
	for _, k := range w.kernels {
		if ok, why := k.settled(); !ok {
			return false, why
		}
	}
	if w.vol != nil {
		return w.vol.settled()
	}
	return true, ""
}

func (n *node) settled() (bool, string) {
	w := n.w
	if n.eng == nil {
		return false, "a node is down"
	}
	for _, a := range n.apps {
		i := a.s.Info()
		switch {
		case w.asleep != nil && a.onlyTo(w.asleep.addr):
			// It waits for a reader that sleeps, and for nothing else.
		case i.Undecided > 0:
			return false, w.text("%v has %d undecided datagrams%v", a.addr, i.Undecided, a.example())
		case a.m != nil && a.m.blocked:
			return false, w.text("%v was never told that it may post again", a.addr)
		case i.Waiting > 0:
			return false, w.text("%v has %d sends waiting", a.addr, i.Waiting)
		case a.flushes > 0:
			return false, w.text("%v has %d flushes unanswered", a.addr, a.flushes)
		case a.unread() > 0 && a.stopped < w.Now():
			return false, w.text("%v has %d datagrams unread", a.addr, i.RecvN)
		case a == w.asleep:
		case i.Congested && a.unread() == 0:
			return false, w.text("%v is congested and empty", a.addr)
		}
	}
	for _, pe := range n.eng.Peers() {
		q := pe.Conn().Queued()
		if w.asleep != nil {
			continue
		}
		if q.Held > 0 || q.Queued > 0 {
			return false, w.text("%v has %+v towards %v", n.addr, q, pe.Addr())
		}
		why := ""
		pe.Conn().EachLane(func(p *conn.Lane) {
			if st := p.State(); st == conn.Disconnecting || st == conn.Connecting || st == conn.Up && !p.Ready() {
				why = w.text("%v is %v, ready %v", p, st, p.Ready())
			}
		})
		if why != "" {
			return false, why
		}
		if pe.CongestedPorts() > 0 && pe.Conn().Up() { // else nobody wants anything of it
			return false, w.text("%v believes %d ports of %v congested", n.addr, pe.CongestedPorts(), pe.Addr())
		}
	}
	return true, ""
}

// unread is how many datagrams the application has to read, or to give back.
func (a *app) unread() int {
	n := a.s.Info().RecvN
	if a.m != nil {
		for _, l := range a.m.released {
			n -= l.train.Count
		}
	}
	return n
}

// onlyTo reports whether everything undecided of a goes to one destination.
func (a *app) onlyTo(dst netip.AddrPort) bool {
	if !a.want {
		return true // nobody was told, so nobody knows
	}
	for _, r := range a.open {
		// What is not accepted waits for the room in the send buffer that those
		// to the sleeping reader take.
		if r.accepted && r.outcome == 0 && r.flow.dst != dst {
			return false
		}
	}
	return true
}

func (a *app) example() any {
	for _, r := range a.open {
		if r.accepted && r.outcome == 0 {
			return w2(r)
		}
	}
	return ""
}

func w2(r *rec) string { return ", such as " + r.String() }

// judge looks at every outcome when all is over.
func (w *World) judge() {
	for _, f := range w.m.byID {
		src, dst := w.byAddr[f.src.Addr()], f.dst.Addr()
		for _, r := range f.recs {
			if src == nil || !r.accepted || r.outcome == 0 {
				continue
			}
			restarted := w.epochOf(dst) != r.rcvEpoch || w.isKernel(dst) && w.epochOf(dst) > 1
			switch r.outcome {
			case conn.Failed:
				if f.dst.Port() != 0 && w.m.ports[f.dst] == r.portEpoch && r.portEpoch%2 == 1 && r.why != conn.WhyNoMemory {
					w.fail("D12: %v failed (%v) although its port was open all the time", r, r.why)
				}
			case conn.Unknown:
				if !restarted && r.size > 0 && !r.cancelled && !w.mayForget(dst) {
					w.fail("D12: %v is unknown (%v) although the peer never restarted", r, r.why)
				}
			case conn.Delivered:
				if r.size > 0 && f.dst.Port() > 1 && r.placed == 0 && !r.loop() && !restarted && w.m.ports[f.dst] == r.portEpoch && r.portEpoch%2 == 1 {
					w.fail("D12: %v is delivered and was never placed", r)
				}
			}
		}
	}
	for _, k := range w.kernels {
		k.judge()
	}
	for _, n := range w.nodes {
		if c := n.eng.Counters(); w.fair && c.ConnReset+c.HeartbeatLost+c.ProtocolError+c.HandshakeTimeout+c.IllegalEvent+c.PeerRestarted != 0 {
			w.fail("D12: no fault, and %v has %d links lost, %d of them silent, %d protocol errors, %d handshakes without an answer, %d illegal events, %d restarts",
				n.addr, c.ConnReset, c.HeartbeatLost, c.ProtocolError, c.HandshakeTimeout, c.IllegalEvent, c.PeerRestarted)
		}
	}
}
