package shm

import "net/netip"

// Flow is a destination in the flow table.
type Flow struct {
	Dst netip.AddrPort

	index, gen uint32
	out        int  // slots grabbed for it, until their last event
	away       bool // not to be found by its destination any more
	used       bool // since the last sweep for an idle one

	// Held and Pair are the caller's own.
	Held uint64
	Pair *PairSender
}

// flowTable finds the flow of a destination and gives entries that are idle to
// new ones: the least lately used, about, by a clock.
type flowTable struct {
	byDst map[netip.AddrPort]*Flow
	last  *Flow   // the one asked for last
	all   []*Flow // by index
	gens  []uint32
	free  []uint32
	hand  int
}

// Flow returns the flow of a destination. A new one is opened: its state is
// FlowUnknown until the daemon has looked. The error is ErrRing, or ErrFlows: every
// entry of the table has something under way.
func (s *Sender) Flow(dst netip.AddrPort) (*Flow, error) {
	t := &s.flows
	if f := t.last; f != nil && f.Dst == dst && !f.away {
		return f, nil
	}
	f := t.byDst[dst]
	if f == nil {
		var err error
		if f, err = s.open(dst); err != nil {
			return nil, err
		}
	}
	f.used = true
	t.last = f
	return f, nil
}

// Known is the flow of a destination if there is one.
func (s *Sender) Known(dst netip.AddrPort) *Flow { return s.flows.byDst[dst] }

func (s *Sender) open(dst netip.AddrPort) (*Flow, error) {
	t := &s.flows
	if !s.ringRoom() {
		return nil, ErrRing
	}
	i, ok := s.idleEntry()
	if !ok {
		return nil, ErrFlows
	}
	t.gens[i] = (t.gens[i] + 1) | 1 // the next odd number
	f := &Flow{Dst: dst, index: i, gen: t.gens[i]}
	t.all[i] = f
	if t.byDst == nil {
		t.byDst = make(map[netip.AddrPort]*Flow)
	}
	t.byDst[dst] = f
	s.r.PutFlow(i, &FlowEntry{Dst: dst, Gen: f.gen})
	s.put(MakeWord(KindOpen, 0, 0), &SendDesc{Flow: i, Gen: f.gen, Cookie: noCookie})
	return f, nil
}

// noCookie is the cookie of descriptors without a slot.
const noCookie = ^uint32(0)

// idleEntry finds an index to use, perhaps another flow's.
func (s *Sender) idleEntry() (uint32, bool) {
	t := &s.flows
	if t.all == nil {
		t.all, t.gens = make([]*Flow, s.r.Flows), make([]uint32, s.r.Flows)
		for i := len(t.all) - 1; i >= 0; i-- {
			t.free = append(t.free, uint32(i))
		}
	}
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i, true
	}
	// A clock over the table: two rounds, because the first may only take marks of recent
	// use away.
	for range 2 * len(t.all) {
		t.hand = (t.hand + 1) % len(t.all)
		f := t.all[t.hand]
		// An entry with messages out belongs to its flow, and one that the daemon has not
		// looked at is about to be read.
		if f == nil || f.out > 0 || s.State(f).State() == FlowUnknown {
			continue
		}
		if f.used {
			f.used = false
			continue
		}
		delete(t.byDst, f.Dst)
		f.away = true
		return f.index, true
	}
	return 0, false
}

// State returns the state that the daemon gives a flow: FlowUnknown while it has not
// looked.
func (s *Sender) State(f *Flow) FlowState {
	st := FlowState(s.r.FlowState(f.index).Load())
	if st.Gen() != f.gen {
		return MakeFlowState(f.gen, FlowUnknown, 0)
	}
	return st
}

// Refused forgets a flow that was refused: the next send there asks the daemon again.
func (s *Sender) Refused(f *Flow) {
	t := &s.flows
	if f.away {
		return
	}
	delete(t.byDst, f.Dst)
	f.away = true
	s.flowIdle(f)
}

// flowIdle takes the entry of a forgotten flow back once nothing of it is out.
func (s *Sender) flowIdle(f *Flow) {
	t := &s.flows
	if f.away && f.out == 0 && t.all[f.index] == f {
		t.all[f.index] = nil
		t.free = append(t.free, f.index)
	}
}

// Index and Gen name the flow in the region.
func (f *Flow) Index() uint32 { return f.index }
func (f *Flow) Gen() uint32   { return f.gen }

// Out is how many slots were grabbed for the flow and have not had their last event.
func (f *Flow) Out() int { return f.out }

// Away reports whether the flow's entry may by now be another's.
func (f *Flow) Away() bool { return f.away }
