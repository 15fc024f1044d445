package hour

import (
	"net/netip"
	"testing"
	"time"
)

// TestBusy: an hour is busy while a single port is congested, be it told apart or one of
// the others.
func TestBusy(t *testing.T) {
	h := New()
	if h.Busy() {
		t.Error("an empty hour is busy")
	}
	h.Change(0, port(1), true)
	if !h.Busy() {
		t.Error("with a congested port it is not busy")
	}
	for n := range MaxPorts {
		h.Change(0, port(n), true)
	}
	h.Change(time.Second, port(MaxPorts), true) // of the others: all entries are congested
	for n := range MaxPorts {
		h.Change(time.Second, port(n), false)
	}
	if v := h.Look(time.Second, nil); v.OthersNow != 1 || !h.Busy() {
		t.Errorf("%d of the others are congested, busy %v", v.OthersNow, h.Busy())
	}
	h.Settle(time.Second, nil, 0)
	if h.Busy() {
		t.Error("when all is clear it is busy")
	}
}

// TestWhoMakesRoom: the entry with the least time makes room, and not another; with its
// time and its times it becomes one of the others, in the slots it had.
func TestWhoMakesRoom(t *testing.T) {
	h := New()
	now := time.Duration(0)
	for n := range MaxPorts {
		h.Change(now, port(n), true)
		d := 10 * time.Millisecond
		if n == 77 {
			d = 5 * time.Millisecond
		}
		now += d
		h.Change(now, port(n), false)
	}
	h.Change(now, port(77), true) // once more, for no time
	h.Change(now, port(77), false)
	h.Change(now, port(1000), true)
	if h.ports[port(77)] != nil || h.ports[port(1000)] == nil || len(h.ports) != MaxPorts {
		t.Fatalf("the entry with the least time is there: %v; the new one is: %v; of %d", h.ports[port(77)] != nil, h.ports[port(1000)] != nil, len(h.ports))
	}
	v := h.Look(now, nil)
	if v.Others.Total != 5*time.Millisecond || v.Others.Times != 2 || len(v.Others.Slot) != 1 || v.Others.Slot[0] != Slots-1 || v.OthersNow != 0 {
		t.Errorf("the others have %+v", v.Others)
	}
	for _, p := range v.Ports {
		if p.Port == port(1000) && (p.Total != 0 || p.Times != 1) {
			t.Errorf("who is new has %v, congested %d times", p.Total, p.Times)
		}
	}
	// One that is congested never makes room, however little time it has.
	for n := range MaxPorts - 1 {
		h.Change(now, port(2000+n), true)
	}
	if h.ports[port(1000)] == nil {
		t.Error("a congested port made room")
	}
	h.Change(now, port(5000), true)
	if v := h.Look(now, nil); v.OthersNow != 1 || h.ports[port(5000)] != nil {
		t.Errorf("%d others are congested", v.OthersNow)
	}
}

// TestKnow: of who fills a port the first few are kept, in memory of the hour's own.
func TestKnow(t *testing.T) {
	h := New()
	h.Change(0, port(1), true)
	list := make([]Culprit, MaxCulprits+1)
	for i := range list {
		list[i] = Culprit{Source: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(i)), Datagrams: uint64(i), Bytes: 9}
	}
	h.Know(port(1), Reader{UID: 1, PID: 2, Program: "p", Culprits: list})
	h.Know(port(2), Reader{UID: 9}) // not told apart
	list[0].Datagrams = 99
	r := h.Look(time.Second, nil).Ports[0].Reader
	if r.UID != 1 || r.PID != 2 || r.Program != "p" || len(r.Culprits) != MaxCulprits || r.Culprits[0].Datagrams != 0 || r.Culprits[MaxCulprits-1].Datagrams != MaxCulprits-1 {
		t.Errorf("%+v", r)
	}
	if cap(r.Culprits) > 2*MaxCulprits {
		t.Errorf("%d culprits take the memory of %d", len(r.Culprits), cap(r.Culprits))
	}
	h.Know(port(1), Reader{Culprits: list[:2]})
	if r := h.Look(time.Second, nil).Ports[0].Reader; len(r.Culprits) != 2 {
		t.Errorf("%+v", r)
	}
}

// TestSlotIsFull: a slot counts as far as its number goes, and no further.
func TestSlotIsFull(t *testing.T) {
	var tr track
	tr.add(0, 1<<32-2)
	tr.add(0, 1)
	if tr.busy[0] != 1<<32-1 || tr.sum != 1<<32-1 {
		t.Errorf("%d in the slot, %d in all", tr.busy[0], tr.sum)
	}
	tr.add(0, 1)
	tr.add(0, 1<<40)
	if tr.busy[0] != 1<<32-1 || tr.sum != 1<<32-1 {
		t.Errorf("more than fits: %d in the slot, %d in all", tr.busy[0], tr.sum)
	}
}

// TestWholeHour: what lasts for exactly an hour, a moment less and a moment more, and what
// is left of it when it ends.
func TestWholeHour(t *testing.T) {
	const hour = Slots * SlotLength
	for _, d := range []time.Duration{hour - 1, hour, hour + 1, hour + SlotLength, 3 * hour} {
		for _, begin := range []time.Duration{0, time.Second, SlotLength} {
			h := New()
			h.Change(begin, port(1), true)
			now := begin + d
			v := h.Look(now, nil)
			first := max((now/SlotLength-(Slots-1))*SlotLength, begin)
			if got, want := v.Ports[0].Total, now-first; got > want+unit || got < want-unit {
				t.Errorf("from %v to %v: %v, want %v", begin, now, got, want)
			}
			if v.Kept != min(now, hour) || v.SlotEnd <= now || v.SlotEnd > now+SlotLength {
				t.Errorf("from %v to %v: %v kept, the newest slot ends at %v", begin, now, v.Kept, v.SlotEnd)
			}
			for _, ms := range v.Ports[0].Ms {
				if ms > uint32(SlotLength/time.Millisecond) {
					t.Errorf("from %v to %v: %d ms in a slot", begin, now, ms)
				}
			}
		}
	}
}

// TestSettleAgain: what Settle says again is no change: the times do not rise, and who is
// not there is clear.
func TestSettleAgain(t *testing.T) {
	h := New()
	for now := time.Duration(0); now < 5*time.Second; now += time.Second {
		h.Settle(now, []Port{port(1), port(2)}, 0)
	}
	h.Settle(5*time.Second, []Port{port(2)}, 0)
	h.Settle(7*time.Second, []Port{port(2)}, 0)
	v := h.Look(7*time.Second, nil)
	if len(v.Ports) != 2 || v.Ports[0].Port != port(2) || v.Ports[0].Total != 7*time.Second || v.Ports[0].Times != 1 || !v.Ports[0].Congested ||
		v.Ports[1].Total != 5*time.Second || v.Ports[1].Times != 1 || v.Ports[1].Congested {
		t.Errorf("%+v", v.Ports)
	}
	h.Settle(8*time.Second, []Port{port(1), port(2)}, 0)
	if v := h.Look(8*time.Second, nil); v.Ports[1].Times != 2 {
		t.Errorf("one that came back: %+v", v.Ports[1])
	}
	// A clear port that was never congested is none of the hour's.
	h.Change(8*time.Second, port(9), false)
	if len(h.ports) != 2 || h.others.n != 0 {
		t.Errorf("%d entries, %d others", len(h.ports), h.others.n)
	}
	// One that was congested for no time at all is forgotten with the next look, not before.
	h.Change(9*time.Second, port(9), true)
	h.Change(9*time.Second, port(9), false)
	h.Settle(9*time.Second, []Port{port(1), port(2)}, 0)
	if h.ports[port(9)] != nil {
		t.Error("nothing was congested, and it is kept")
	}
}

// TestSettleMore: ports beside the list are others', and who is told apart and congested is named, to be
// looked after where the list was cut.
func TestSettleMore(t *testing.T) {
	h := New()
	h.Settle(0, []Port{port(1), port(2)}, 7)
	h.Settle(time.Second, []Port{port(2)}, 9)
	if l := h.Congested(); len(l) != 1 || l[0] != port(2) {
		t.Errorf("%v are congested", l)
	}
	if v := h.Look(time.Second, nil); v.OthersNow != 9 || v.Others.Total == 0 {
		t.Errorf("others: %d, %+v", v.OthersNow, v.Others)
	}
	h.Settle(2*time.Second, []Port{port(2)}, 0)
	if v := h.Look(2*time.Second, nil); v.OthersNow != 0 {
		t.Errorf("%d others", v.OthersNow)
	}
}

// TestOrder: the longest congested comes first, of two as long the lower endpoint.
func TestOrder(t *testing.T) {
	h := New()
	for _, n := range []int{3, 1, 2} {
		h.Change(0, port(n), true)
	}
	h.Change(time.Second, port(1), false)
	want := []Port{port(2), port(3), port(1)}
	for i, p := range h.Look(2*time.Second, nil).Ports {
		if p.Port != want[i] {
			t.Errorf("number %d is %v", i, p.Endpoint)
		}
	}
}
