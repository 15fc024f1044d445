package shm

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// What a region that somebody has scribbled over says of its rings is not believed: a head
// that went back or past the tail makes no room, and one that cannot be ends the reading.
func TestHeadsThatCannotBe(t *testing.T) {
	s, x, h := clientPair(t, smallSpec())
	f := openFlow(t, s, h, clientDst)
	for range 4 { // a ring of 4
		sl, err := s.Grab(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 1, 1, 1, 1, false)
	}
	r := h.Region()
	taken := s.head
	for _, head := range []uint64{taken - 1, s.tail + 1, 0, ^uint64(0), s.tail + 1<<40} {
		r.SendHead().Store(head)
		if _, err := s.Grab(f, 1); err != ErrRing || s.head != taken {
			t.Errorf("with a head of %d between %d and %d: %v, believed %d", head, taken, s.tail, err, s.head)
		}
	}
	for _, head := range []uint64{taken, taken + 1} {
		r.SendHead().Store(head)
		sl, err := s.Grab(f, 1)
		if (err == nil) != (head != taken) || s.head != head {
			t.Errorf("with a head of %d: %v", head, err)
		}
		if err == nil {
			s.Drop(&sl)
		}
	}
	r.SendHead().Store(s.tail) // all of them
	if _, err := s.Grab(f, 1); err != nil {
		t.Errorf("an empty ring: %v", err)
	}
	var d RecvDesc
	for tail, bad := range map[uint64]bool{0: false, 5: true, 1 << 40: true} {
		x.tail = x.head
		r.RecvTail().Store(tail)
		if ok, err := x.Peek(&d); ok || errors.Is(err, unix.EBADMSG) != bad {
			t.Errorf("a receive tail of %d: %v, %v", tail, ok, err)
		}
	}
	x.tail = x.head
	r.RecvTail().Store(1)
	for i, c := range []struct {
		out, relTail, head uint64
		want               error
	}{
		{0, 8, 0, ErrReleases}, {0, 8, 1, unix.EBADMSG /* of what Peek finds in the ring */}, {0, 8, 9, unix.EBADMSG}, {8, 0, 0, ErrBorrowed},
		{7, 1, 0, ErrReleases}, {9, 0, 0, ErrBorrowed}, {0, 8, ^uint64(0), unix.EBADMSG}, {1, 7, 0, ErrReleases}, {7, 8, 8, unix.EBADMSG},
	} {
		x.out, x.relTail, x.relHead = c.out, c.relTail, 0
		r.ReleaseHead().Store(c.head)
		if ok, err := x.Peek(&d); ok || !errors.Is(err, c.want) {
			t.Errorf("%d: %d out, %d released of which %d were read: %v, %v; want %v", i, c.out, c.relTail, c.head, ok, err, c.want)
		}
	}
	// What cannot be in the event ring.
	for tail, bad := range map[uint64]bool{s.evNext: false, s.evNext + 5: true, s.evNext - 1: true} {
		s.evTail = s.evNext
		r.EventTail().Store(tail)
		if ok, err := s.NextEvent(new(Event)); ok || errors.Is(err, unix.EBADMSG) != bad {
			t.Errorf("an event tail of %d after %d: %v, %v", tail, s.evNext, ok, err)
		}
	}
}

// After the daemon is gone what is in the ring can be taken, whatever is borrowed, and
// no reader is said to lack room.
func TestAbandonedReceiver(t *testing.T) {
	_, x, h := clientPair(t, smallSpec())
	var d RecvDesc
	for i := range 8 { // as many as the release ring has entries
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0); !ok {
			t.Fatal("no room")
		}
		h.Publish()
		if ok, err := x.Peek(&d); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		x.Take()
		x.Taken()
	}
	h.PlaceCopy(testDst, wire.One([]byte("y")), NoLane, 0)
	h.Publish()
	if ok, err := x.Peek(&d); ok || err != ErrBorrowed {
		t.Fatalf("a ninth of eight: %v, %v", ok, err)
	}
	x.Abandon()
	if ok, err := x.Peek(&d); !ok || err != nil || string(x.Body(&d)) != "y" {
		t.Errorf("of a daemon that is gone: %v, %v", ok, err)
	}
	x.Take()
	h.WantRoom(true)
	h.Publish()
	if !RoomWanted(h.Region()) || x.Out() != 9 || x.Starved() {
		t.Errorf("room is wanted: %v; %d out, starved %v", RoomWanted(h.Region()), x.Out(), x.Starved())
	}
	x.dead = false
	if !x.Starved() {
		t.Error("of a daemon that is there")
	}
}

// A block whose pages cannot be paid for goes back, so that nothing is lost of the arena
// however often it is tried.
func TestUnpaidBlocksGoBack(t *testing.T) {
	h, _ := untouched(t, testSpec())
	p := &purse{}
	h.Pay(p)
	for range 3 {
		if _, _, ok := h.Reserve(3 * int(pageBytes)); ok || h.arena.Used() != 0 || h.nSlots != 0 || h.Paid() != 0 {
			t.Fatalf("reserved %v unpaid; %d bytes of the arena are used, %d slots", ok, h.arena.Used(), h.nSlots)
		}
	}
	p.left = 4 * int(pageBytes) // a block of four
	off, _, ok := h.Reserve(3 * int(pageBytes))
	if !ok || p.left != 0 || h.Paid() != 4*int(pageBytes) {
		t.Fatalf("reserved %v, %d bytes left, %d paid", ok, p.left, h.Paid())
	}
	h.Unreserve(off)
	if _, _, ok = h.Reserve(3 * int(pageBytes)); !ok || h.Paid() != 4*int(pageBytes) {
		t.Errorf("once more: %v, %d paid", ok, h.Paid())
	}
}

// A client that reads no events for long hears of all of them then, to the last one, and
// the memory they waited in is given back.
func TestLongOverflow(t *testing.T) {
	spec := smallSpec()
	spec.Sends = 2048
	h, m := newPair(t, spec, nil)
	m.flow(0, 1, testDst)
	const n = 1500
	for i := range uint64(n) {
		m.post(MakeWord(KindEach, 1, 1), SendDesc{Tag: 10 * i, Gen: 1, Cookie: uint32(i)}, nil)
		id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
		h.Outcome(id, 10*i, 1, Delivered, 0, true)
	}
	got := uint64(0)
	for turns := 0; got < n && turns < 2*n; turns++ {
		h.Publish()
		for _, v := range m.events() {
			if v.Tag != 10*got || v.Cookie != uint32(got) || v.Flags != EventLast || v.Count != 1 {
				t.Fatalf("event %d is %+v", got, v)
			}
			got++
		}
	}
	if got != n || h.Outstanding() != 0 || h.overflow.n != 0 || cap(h.overflow.q) > 1024 {
		t.Errorf("%d of %d events, %d outstanding, room for %d is kept", got, n, h.Outstanding(), cap(h.overflow.q))
	}
	restored(t, nil, h)
}

// The lane of datagrams that stay at their address is that of the address itself.
func TestLocalLaneOfARegion(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for i, c := range []struct {
		lane          uint32
		local, remote netip.Addr
		want          uint64
	}{
		{LocalLane, a, a, 5}, {LocalLane, b, b, 0}, {LocalLane, a, b, 0}, {LocalLane, b, a, 0}, {0, a, a, 0}, {LocalLane - 1, a, a, 0},
	} {
		rep := &Report{Lanes: map[uint32]*LaneRecord{7: {Lane: c.lane, Local: c.local, Remote: c.remote, Received: 5}}}
		g := &RegionReport{RegionRecord: RegionRecord{Local: netip.AddrPortFrom(a, 9)}}
		if got := rep.localReceived(g); got != c.want {
			t.Errorf("%d: placed up to %d, want %d", i, got, c.want)
		}
	}
	if (&Report{}).localReceived(&RegionReport{}) != 0 {
		t.Error("without lanes")
	}
}

// What the daemon says of flows is for their entry and generation alone, and the table is
// never left, whatever number comes.
func TestFlowEdges(t *testing.T) {
	s, _, h := clientPair(t, smallSpec())
	f := openFlow(t, s, h, clientDst)
	r := h.Region()
	h.SetFlow(f.Index(), f.Gen()+2, FlowRefused, 5) // of another generation
	if st := s.State(f); st.State() != FlowUnknown || st.Gen() != f.Gen() || st.Errno() != 0 {
		t.Errorf("of another generation: %#x", uint64(st))
	}
	h.SetFlow(f.Index(), f.Gen(), FlowRefused, 5)
	if st := s.State(f); st.State() != FlowRefused || st.Errno() != 5 {
		t.Errorf("refused: %#x", uint64(st))
	}
	before := fmt.Sprint(r.mem[r.FlowStateOff : r.FlowStateOff+uint64(r.Flows)*8+64])
	for _, i := range []uint32{r.Flows, r.Flows + 1, ^uint32(0)} {
		h.SetFlow(i, 1, FlowClear, 0)
		if _, _, ok := h.FlowEntry(i); ok {
			t.Errorf("entry %d of %d is there", i, r.Flows)
		}
		if _, ok := h.Jam(i, 1); ok {
			t.Errorf("entry %d of %d has jams", i, r.Flows)
		}
	}
	if after := fmt.Sprint(r.mem[r.FlowStateOff : r.FlowStateOff+uint64(r.Flows)*8+64]); after != before {
		t.Error("something was written")
	}
	if dst, gen, ok := h.FlowEntry(f.Index()); dst != clientDst || gen != f.Gen() || !ok {
		t.Errorf("%v, %d, %v", dst, gen, ok)
	}
	h.SetFlow(r.Flows-1, 9, FlowCongested, 0)
	if st := FlowState(r.FlowState(r.Flows - 1).Load()); st.State() != FlowCongested || st.Gen() != 9 {
		t.Errorf("the last entry: %#x", uint64(st))
	}
	h.Leave()
	h.SetFlow(f.Index(), f.Gen(), FlowClear, 0)
	if _, _, ok := h.FlowEntry(f.Index()); ok || s.State(f).State() != FlowRefused {
		t.Error("of a region that was left")
	}
	// A refused flow is forgotten, once, and its entry is another's when nothing is out.
	s.Refused(f)
	s.Refused(f)
	if s.Known(clientDst) != nil || !f.Away() || len(s.flows.free) != int(r.Flows) {
		t.Errorf("forgotten: %v, %d entries free of %d", f.Away(), len(s.flows.free), r.Flows)
	}
}
