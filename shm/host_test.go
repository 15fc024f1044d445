package shm

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

var testDst = netip.MustParseAddrPort("10.0.0.2:5000")

// mate is the least client there is: it follows the layout step by step, so
// that tests can do each step, or a wrong one, by hand.
type mate struct {
	t                               testing.TB
	r                               *Region
	sendTail, eventHead, head, tail uint64 // tail: of the release ring
}

func newPair(t testing.TB, s Spec, led *Ledger) (*Host, *mate) {
	t.Helper()
	r := newRegion(t, s)
	g, err := led.Region(r)
	if err != nil {
		t.Fatal(err)
	}
	h := NewHost(r, g)
	return h, &mate{t: t, r: r}
}

// smallSpec has rings that are soon full.
func smallSpec() Spec {
	s := testSpec()
	s.Flows, s.Sends, s.Events, s.Receives, s.Releases = 8, 4, 4, 4, 8
	s.SendArena, s.RecvArena = 1<<20, 1<<20
	return s
}

func (m *mate) flow(i, gen uint32, dst netip.AddrPort) {
	m.r.PutFlow(i, &FlowEntry{Dst: dst, Gen: gen})
}

func (m *mate) post(w Word, d SendDesc, body []byte) {
	if len(body) > 0 {
		copy(m.r.SendArena()[d.Slot:], body)
	}
	m.r.PutSend(m.sendTail, w, &d)
	m.sendTail++
	m.r.SendTail().Store(m.sendTail)
}

func (m *mate) send(slot uint64, cookie uint32, body string) {
	m.post(MakeWord(KindEach, len(body), 1), SendDesc{Tag: uint64(cookie) * 10, Slot: slot, Gen: 1, Cookie: cookie}, []byte(body))
}

func (m *mate) events() (all []Event) {
	for tail := m.r.EventTail().Load(); m.eventHead != tail; m.eventHead++ {
		var v Event
		m.r.GetEvent(m.eventHead, &v)
		all = append(all, v)
	}
	m.r.EventHead().Store(m.eventHead)
	return all
}

// received takes all descriptors and returns what they hold, released or not.
func (m *mate) received(release bool) (all []string) {
	for tail := m.r.RecvTail().Load(); m.head != tail; m.head++ {
		var d RecvDesc
		m.r.GetRecv(m.head, &d)
		all = append(all, fmt.Sprintf("%v %d:%s", d.Src, d.Word.Count(), m.r.RecvArena()[d.Slot:][:d.Word.Bytes()]))
		if release {
			m.release(d.Slot)
		}
	}
	m.r.RecvHead().Store(m.head)
	return all
}

func (m *mate) release(slot uint64) {
	m.r.PutRelease(m.tail, slot)
	m.tail++
	m.r.ReleaseTail().Store(m.tail)
}

// grow does what a daemon does when entries of the send table run out.
func grow(h *Host) {
	if from, pages, wanted := h.Growth(); wanted {
		if h.led.Grow(from, pages) != nil {
			pages = 0
		}
		h.Grown(pages)
	}
}

func next(t testing.TB, h *Host) *Post {
	t.Helper()
	grow(h)
	p := new(Post)
	if ok, err := h.Next(p); !ok || err != nil {
		t.Fatalf("Next: %v %v", ok, err)
	}
	return p
}

func nothing(t testing.TB, h *Host) {
	t.Helper()
	var p Post
	if ok, err := h.Next(&p); ok || err != nil || h.HasPosts() {
		t.Fatalf("Next: %v %v %+v, has posts %v", ok, err, p, h.HasPosts())
	}
}

func TestHostSends(t *testing.T) {
	h, m := newPair(t, testSpec(), nil)
	nothing(t, h)
	m.flow(3, 1, testDst)
	m.post(MakeWord(KindOpen, 0, 0), SendDesc{Flow: 3, Gen: 1}, nil)
	if !h.HasPosts() {
		t.Error("a post is there")
	}
	p := next(t, h)
	if !p.Open || p.Flow != 3 || p.Gen != 1 {
		t.Errorf("%+v", p)
	}
	if dst, gen, ok := h.FlowEntry(3); dst != testDst || gen != 1 || !ok {
		t.Error(dst, gen, ok)
	}
	if _, _, ok := h.FlowEntry(4); ok {
		t.Error("an empty entry is a flow")
	}
	h.Taken(p, MakeTarget(testDst), false)
	h.SetFlow(3, 1, FlowCongested, 0)
	if s := FlowState(m.r.FlowState(3).Load()); s.Gen() != 1 || s.State() != FlowCongested || s.Errno() != 0 {
		t.Errorf("%#x", s)
	}

	m.post(MakeWord(KindEach, 4, 1), SendDesc{Tag: 100, Slot: 640, Flow: 3, Gen: 1, Cookie: 9, Flags: FlagWant}, []byte("abcd"))
	// Appended before the daemon looks: a train. Afterwards: too late.
	copy(m.r.SendArena()[644:], "efgh")
	w := Word(m.r.SendWord(1).Load())
	if !m.r.SendWord(1).CompareAndSwap(uint64(w), uint64(w.Grow(1, 4))) {
		t.Error("could not append")
	}
	p = next(t, h)
	if string(p.Body) != "abcdefgh" || p.Count != 2 || p.Tag != 100 || p.Cookie != 9 || !p.Want || p.Slot != 640 || p.Bad != nil {
		t.Errorf("%+v", p)
	}
	now := Word(m.r.SendWord(1).Load())
	if !now.Claimed() || now.Bytes() != 8 || now.Count() != 2 {
		t.Errorf("claimed word %#x", now)
	}
	if m.r.SendHead().Load() != 1 {
		t.Error("the head moved before it was taken")
	}
	if q := next(t, h); q.Tag != 100 || h.HasPosts() {
		t.Error("another post, before this one was taken")
	}
	id, cell := h.Taken(p, MakeTarget(testDst), true)
	if m.r.SendHead().Load() != 2 || cell == nil || h.Outstanding() != 1 || h.OutstandingBytes() != 8 {
		t.Error("the head did not move, or the accounts are wrong")
	}
	nothing(t, h)
	h.Outcome(id, 100, 1, Delivered, 0, false)
	h.Outcome(id, 101, 1, Delivered, 0, true) // one event with the one before
	if h.Publish() {
		t.Error("a client that is awake was rung")
	}
	want := []Event{{Kind: EventOutcome, Outcome: Delivered, Flags: EventLast, Count: 2, Tag: 100, Cookie: 9}}
	if got := m.events(); len(got) != 1 || got[0] != want[0] {
		t.Errorf("%+v", got)
	}
	if h.Outstanding() != 0 || h.OutstandingBytes() != 0 || h.OutstandingDatagrams() != 0 {
		t.Error("something is outstanding")
	}
	if h.Err() != nil {
		t.Error(h.Err())
	}
}

// TestHostEventsFull: events wait without loss and in order, posts are taken
// meanwhile, and a sleeping daemon is told when there is room.
func TestHostEventsFull(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	h.WantRoom(false)
	var ids []uint32
	for i := range 9 {
		m.send(uint64(i)*64, uint32(i), "x")
		p := next(t, h)
		id, _ := h.Taken(p, MakeTarget(testDst), true)
		ids = append(ids, id)
	}
	m.send(9*64, 9, "y")
	for i, id := range ids {
		h.Outcome(id, uint64(i)*10, 1, Failed, uint8(i), true)
		h.Freed(1 << i)
		h.Changed(testDst, i%2 == 0)
	}
	h.Publish()
	p := next(t, h)
	if p.Cookie != 9 {
		t.Errorf("%+v", p)
	}
	h.Taken(p, MakeTarget(testDst), true)
	if !h.Sleep() || m.r.DaemonSleeps().Load()&DaemonWaitsRoom == 0 {
		t.Error("the daemon does not wait for room")
	}
	var all []Event
	for range 10 {
		got := m.events()
		if len(got) == 0 {
			break
		}
		all = append(all, got...)
		if len(all) < 12 && (!h.HasRoom() || h.Sleep()) {
			t.Error("the room was not seen")
		}
		h.Publish()
	}
	last, mask, changes := -1, uint64(0), 0
	for _, v := range all {
		switch v.Kind {
		case EventOutcome:
			if int(v.Cookie) != last+1 || int(v.Why) != last+1 {
				t.Errorf("outcome of %d after %d", v.Cookie, last)
			}
			last = int(v.Cookie)
		case EventFreed:
			mask |= v.Tag
		case EventCongestion:
			changes++
		}
	}
	if last != 8 || mask != 1<<9-1 || changes == 0 || all[len(all)-1].Kind == 0 {
		t.Errorf("%d outcomes, groups %#x, %d changes", last+1, mask, changes)
	}
	if len(all) > 9+2+2+2 {
		t.Errorf("%d events: changes were not put together", len(all))
	}
}

// TestHostEventsUnread: a client that reads no events is served up to the bound
// it is to keep to, and again when it has read some.
func TestHostEventsUnread(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	took := 0
	take := func() {
		m.send(0, uint32(took), "x")
		p := next(t, h)
		id, _ := h.Taken(p, MakeTarget(testDst), true)
		h.Outcome(id, uint64(took)*10, 1, Delivered, 0, true)
		h.Publish()
		took++
	}
	room := h.eventRoom()
	for took < MaxOutstanding+room {
		take()
	}
	m.send(0, uint32(took), "x")
	var p Post
	if ok, err := h.Next(&p); h.HasPosts() || ok || err != nil {
		t.Errorf("%d events wait and more is taken: %v", h.overflow.n, err)
	}
	if !h.Sleep() || m.r.DaemonSleeps().Load()&DaemonWaitsRoom == 0 {
		t.Error("the daemon does not wait for room")
	}
	m.events()
	h.Publish()
	if !h.HasPosts() || h.Sleep() {
		t.Error("the post that waited is not seen")
	}
}

func TestHostBadPosts(t *testing.T) {
	for name, c := range map[string]struct {
		w     Word
		flags uint32
		errno unix.Errno
	}{
		"bytes do not divide":  {MakeWord(KindEach, 10, 3), 0, unix.EINVAL},
		"a table too long":     {MakeWord(KindTable, 11, 3), 0, unix.EINVAL},
		"too large":            {MakeWord(KindEach, 300000, 1), 0, unix.EMSGSIZE},
		"too large a train":    {MakeWord(KindEach, MaxTrainBytes+2, 2), 0, unix.EMSGSIZE},
		"reserved bits":        {MakeWord(KindEach, 1, 1) | 1<<50, 0, unix.EINVAL},
		"unknown flags":        {MakeWord(KindEach, 1, 1), 2, unix.EINVAL},
		"good: no bytes":       {MakeWord(KindEach, 0, 4096), 0, 0},
		"good: no appending":   {MakeWord(KindEach, 64, 64) | WordNoAppend, 0, 0},
		"good: claimed before": {MakeWord(KindTable, 12, 3) | WordClaimed, 0, 0},
	} {
		s := testSpec()
		s.MaxDatagram = 262144
		h, m := newPair(t, s, nil)
		m.post(c.w, SendDesc{Cookie: 5, Flags: c.flags}, nil)
		p := next(t, h)
		if c.errno == 0 {
			if p.Bad != nil || len(p.Body) != c.w.Bytes() {
				t.Errorf("%s: %+v", name, p)
			}
			continue
		}
		if !errors.Is(p.Bad, c.errno) {
			t.Errorf("%s: %v", name, p.Bad)
		}
		h.Taken(p, Target{}, false)
		h.Refused(p, uint16(c.errno))
		h.Publish()
		v := m.events()
		if len(v) != 1 || v[0].Kind != EventRefused || v[0].Flags != EventLast || v[0].Cookie != 5 || v[0].Errno != uint32(c.errno) || v[0].Count != uint32(c.w.Count()) {
			t.Errorf("%s: %+v", name, v)
		}
		if h.Outstanding() != 0 || h.Err() != nil {
			t.Errorf("%s: %d outstanding, %v", name, h.Outstanding(), h.Err())
		}
	}
}

func TestHostHostile(t *testing.T) {
	arena := uint64(1 << 20)
	post := func(w Word, d SendDesc) func(*mate) {
		return func(m *mate) { m.post(w, d, nil) }
	}
	one := MakeWord(KindEach, 64, 1)
	for name, spoil := range map[string]func(*mate){
		"tail beyond the ring":     func(m *mate) { m.r.SendTail().Store(5) },
		"tail behind":              func(m *mate) { m.r.SendTail().Store(^uint64(0)) },
		"kind 0":                   post(MakeWord(0, 1, 1), SendDesc{}),
		"kind 4":                   post(MakeWord(4, 1, 1), SendDesc{}),
		"flow":                     post(one, SendDesc{Flow: 8}),
		"no datagrams":             post(MakeWord(KindEach, 0, 0), SendDesc{}),
		"too many datagrams":       post(MakeWord(KindEach, 0, 4097), SendDesc{}),
		"slot not aligned":         post(one, SendDesc{Slot: 32}),
		"slot outside":             post(one, SendDesc{Slot: arena}),
		"slot wraps":               post(one, SendDesc{Slot: ^uint64(63)}),
		"body over the end":        post(MakeWord(KindEach, 65, 1), SendDesc{Slot: arena - 64}),
		"release tail":             func(m *mate) { m.r.ReleaseTail().Store(9) },
		"release of nothing":       func(m *mate) { m.release(0) },
		"release misaligned":       func(m *mate) { m.release(1) },
		"release outside":          func(m *mate) { m.release(1 << 40) },
		"release before published": func(m *mate) { m.release(m.t.(*hostileT).placed) },
		"release twice": func(m *mate) {
			h := m.t.(*hostileT).h
			h.Publish()
			s := m.t.(*hostileT).placed
			m.release(s)
			m.release(s)
		},
		"receive head ahead": func(m *mate) { m.r.RecvHead().Store(1000) },
		"event head ahead":   func(m *mate) { m.r.EventHead().Store(1000) },
	} {
		h, m := newPair(t, smallSpec(), nil)
		off, _, _ := h.Reserve(10)
		h.Place(testDst, off, wire.One(make([]byte, 10)), NoLane, 0)
		m.t = &hostileT{TB: t, h: h, placed: off}
		spoil(m)
		var err error
		for range 10 {
			var p Post
			if _, err = h.Next(&p); err != nil {
				break
			}
			if _, _, _, err = h.Releases(); err != nil {
				break
			}
			h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0)
			h.closeTrain()
			h.Changed(testDst, true)
			h.Publish()
		}
		if !errors.Is(err, unix.EBADMSG) || h.Err() == nil || !h.HasPosts() {
			t.Errorf("%s: %v", name, err)
		}
		if h.Sleep() {
			t.Errorf("%s: the daemon sleeps instead of closing it", name)
		}
	}
}

type hostileT struct {
	testing.TB
	h      *Host
	placed uint64
}

// TestHostRings: the client's doorbell rings for what it waits for, once.
func TestHostRings(t *testing.T) {
	h, m := newPair(t, testSpec(), nil)
	sleeps := m.r.ClientSleeps()
	m.send(0, 1, "x")
	sleeps.Store(ClientWaitsRecv)
	id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
	h.Outcome(id, 10, 1, Delivered, 0, true)
	if h.Publish() {
		t.Error("rung for an event it does not wait for")
	}
	h.PlaceCopy(testDst, wire.One(nil), NoLane, 0)
	if !h.Publish() || sleeps.Load() != 0 {
		t.Error("not rung for a datagram")
	}
	for bit, news := range map[uint32]func(){
		ClientWaitsEvent:    func() { h.Freed(1) },
		ClientWaitsFlow:     func() { h.SetFlow(0, 1, FlowClear, 0) },
		ClientWaitsSendRoom: func() { m.send(0, 1, "x"); h.Taken(next(t, h), MakeTarget(testDst), true) },
		ClientWaitsRecv:     func() { h.PlaceCopy(testDst, wire.One(nil), NoLane, 0) },
	} {
		sleeps.Store(bit)
		news()
		if !h.Publish() || h.Publish() {
			t.Errorf("bit %d: not rung, or twice", bit)
		}
		sleeps.Store(15 &^ bit)
		news()
		if h.Publish() {
			t.Errorf("bit %d: rung for nothing", bit)
		}
	}
	h.CloseWord(unix.ESHUTDOWN)
	if m.r.Closed().Load() != uint32(unix.ESHUTDOWN) {
		t.Error("closed word")
	}
}

func TestHostBugs(t *testing.T) {
	for name, do := range map[string]func(h *Host, id uint32){
		"unknown id":        func(h *Host, id uint32) { h.Outcome(id+1, 0, 1, 1, 0, true) },
		"too many":          func(h *Host, id uint32) { h.Outcome(id, 0, 3, 1, 0, true) },
		"last too early":    func(h *Host, id uint32) { h.Outcome(id, 0, 1, 1, 0, true) },
		"last not said":     func(h *Host, id uint32) { h.Outcome(id, 0, 2, 1, 0, false) },
		"twice":             func(h *Host, id uint32) { h.Outcome(id, 0, 2, 1, 0, true); h.Outcome(id, 0, 2, 1, 0, true) },
		"taken twice":       func(h *Host, id uint32) { h.Taken(&Post{}, MakeTarget(testDst), true) },
		"unreserve nothing": func(h *Host, id uint32) { h.Unreserve(64) },
		"place nothing":     func(h *Host, id uint32) { h.Place(testDst, 64, wire.One(make([]byte, 1)), NoLane, 0) },
		"place too much": func(h *Host, id uint32) {
			o, _, _ := h.Reserve(64)
			h.Place(testDst, o, wire.One(make([]byte, 65)), NoLane, 0)
		},
		"place no train": func(h *Host, id uint32) {
			h.PlaceCopy(testDst, wire.Train{Body: []byte("abc"), Count: 2}, NoLane, 0)
		},
	} {
		h, m := newPair(t, testSpec(), nil)
		m.post(MakeWord(KindEach, 2, 2), SendDesc{}, []byte("ab"))
		id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
		do(h, id)
		if !errors.Is(h.Err(), unix.EIO) {
			t.Errorf("%s: %v", name, h.Err())
		}
	}
}

// TestHostEvacuate: the client is dead; what is in flight stays readable at
// its place, nothing is shared any more, and the accounts run out.
func TestHostEvacuate(t *testing.T) {
	led := newLedger(t, LedgerSpec{})
	h, m := newPair(t, testSpec(), led)
	c, err := Open(h.r.FD, h.r.LendFD, h.r.RegionBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ReadHeader(); err != nil {
		t.Fatal(err)
	}
	m.r = c
	m.send(4096*3+64, 1, "keep me")
	m.send(4096*9, 2, "not me")
	p1 := next(t, h)
	id1, cell := h.Taken(p1, MakeTarget(testDst), true)
	p2 := next(t, h)
	id2, _ := h.Taken(p2, MakeTarget(testDst), true)
	off, b, _ := h.Reserve(100)
	h.r.Lent()
	before := openFDs(t)
	h.Leave()
	if err := h.r.Evacuate([]Body{{p1.Slot, len(p1.Body)}, {1 << 50, 5}, {0, -1}}); err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t); n != before-1 {
		t.Errorf("%d descriptors, before %d", n, before)
	}
	copy(c.SendArena()[p1.Slot:], "changed")
	c.SendTail().Store(77)
	if string(p1.Body) != "keep me" || p2.Body[0] != 0 {
		t.Errorf("%q %q", p1.Body, p2.Body)
	}
	b[0] = 1
	h.Unreserve(off)
	*cell = 5
	nothing(t, h)
	if h.Publish() || !h.Sleep() || h.HasRoom() {
		t.Error("there is work for a dead client")
	}
	if _, _, ok := h.Reserve(1); ok {
		t.Error("a slot for a dead client")
	}
	if h.Close() == nil {
		t.Error("closed with descriptors on their way")
	}
	h.Outcome(id2, 20, 1, Delivered, 0, true)
	h.Outcome(id1, 10, 1, Failed, 0, true)
	if h.Outstanding() != 0 {
		t.Error("the accounts did not run out")
	}
	if err := h.Close(); err != nil || h.Err() != nil {
		t.Error(err, h.Err())
	}
	if h.led != nil || len(led.freeRegions) != 1 {
		t.Error("its place in the ledger is not free")
	}
}
