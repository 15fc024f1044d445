package shm

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

var clientDst = netip.MustParseAddrPort("10.0.0.9:5000")

// clientPair is both ends of a small region.
func clientPair(t testing.TB, spec Spec) (*Sender, *Receiver, *Host) {
	spec.Local = netip.MustParseAddrPort("10.0.0.1:4000")
	if spec.SndBuf == 0 {
		spec.SndBuf, spec.RcvBuf = 1<<20, 1<<20
	}
	r, err := Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); closeAll([]int{bell}) })
	return NewSender(r, bell), NewReceiver(r, bell), NewHost(r, nil)
}

// takeAll has the daemon accept everything that is posted.
func takeAll(t testing.TB, h *Host) (ids []uint32, posts []Post) {
	var p Post
	for {
		ok, err := h.Next(&p)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			h.Publish()
			return ids, posts
		}
		if p.Open {
			h.Taken(&p, MakeTarget(clientDst), false)
			h.SetFlow(p.Flow, p.Gen, FlowClear, 0)
			continue
		}
		id, _ := h.Taken(&p, MakeTarget(clientDst), true)
		ids, posts = append(ids, id), append(posts, p)
	}
}

func openFlow(t testing.TB, s *Sender, h *Host, dst netip.AddrPort) *Flow {
	f, err := s.Flow(dst)
	if err != nil {
		t.Fatal(err)
	}
	if st := s.State(f).State(); st != FlowUnknown {
		t.Fatalf("a new flow is in state %d", st)
	}
	takeAll(t, h)
	if st := s.State(f).State(); st != FlowClear {
		t.Fatalf("state %d", st)
	}
	return f
}

// The accounts of a client against a plain model: whatever is grabbed, posted,
// appended, dropped and finished in parts, room and numbers come out right.
func TestSenderAccounts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SndBuf: 100000, RcvBuf: 1000, SendArena: 1 << 18})
		f := openFlow(t, s, h, clientDst)
		type out struct {
			id   uint32
			p    Post
			next int // datagrams with an outcome
		}
		var under []out
		var held []Slot
		tag, posted, settled := uint64(0), 0, 0
		settle := func() {
			var v Event
			for {
				ok, err := s.NextEvent(&v)
				if err != nil {
					rt.Fatal(err)
				}
				if !ok {
					break
				}
				settled += int(v.Count)
			}
			s.EventsTaken()
		}
		take := func() {
			ids, posts := takeAll(t, h)
			for i, p := range posts {
				under = append(under, out{id: ids[i], p: p})
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"grab": func(rt *rapid.T) {
				want := Want{Body: rapid.IntRange(0, 5000).Draw(rt, "n"), Table: rapid.SampledFrom([]int{0, 10, 500}).Draw(rt, "table")}
				if sl, err := s.GrabFor(f, want); err == nil {
					held = append(held, sl)
				} else if !errors.Is(err, rdserr.ErrWouldBlock) {
					rt.Fatal(err)
				}
			},
			"post": func(rt *rapid.T) {
				if len(held) == 0 {
					return
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				sl := held[i]
				held = append(held[:i], held[i+1:]...)
				count := rapid.IntRange(1, 5).Draw(rt, "count")
				each := len(sl.Body) / count
				s.Post(&sl, KindEach, each*count, count, each*count, tag+1, false)
				tag += uint64(count)
				posted += count
			},
			"append": func(rt *rapid.T) {
				if s.Append(f, make([]byte, rapid.SampledFrom([]int{0, 10, max(0, s.last.each)}).Draw(rt, "n")), tag+1) {
					tag++
					posted++
				}
			},
			"mix several": func(rt *rapid.T) {
				n := rapid.IntRange(1, 40).Draw(rt, "count")
				if !s.Mix(f, n, tag+1) {
					return
				}
				added := 0
				for added < n && s.Add(make([]byte, n-added)) {
					added++
				}
				if got := s.Added(); got != 0 && got != added || added == 0 {
					rt.Fatalf("%d of %d were added", got, added)
				} else {
					tag += uint64(got)
					posted += got
				}
			},
			"append several": func(rt *rapid.T) {
				n := rapid.IntRange(1, 40).Draw(rt, "count")
				_, fit := s.Behind(f, max(0, s.last.each), n, tag+1)
				if fit > n {
					rt.Fatalf("%d fit of %d", fit, n)
				}
				if fit > 0 && s.Appended(fit) {
					tag += uint64(fit)
					posted += fit
				}
			},
			"drop": func(rt *rapid.T) {
				if len(held) > 0 {
					s.Drop(&held[0])
					held = held[1:]
				}
			},
			"finish": func(rt *rapid.T) {
				take()
				if len(under) == 0 {
					return
				}
				i := rapid.IntRange(0, len(under)-1).Draw(rt, "which")
				u := &under[i]
				n := rapid.IntRange(1, u.p.Count-u.next).Draw(rt, "n")
				h.Outcome(u.id, u.p.Tag+uint64(u.next), n, Delivered, 0, u.next+n == u.p.Count)
				if u.next += n; u.next == u.p.Count {
					under = append(under[:i], under[i+1:]...)
				}
				h.Publish()
			},
			"settle": func(*rapid.T) { settle() },
		})
		for _, sl := range held {
			s.Drop(&sl)
		}
		for tries := 0; s.Out() > 0; tries++ {
			take()
			for _, u := range under {
				h.Outcome(u.id, u.p.Tag+uint64(u.next), u.p.Count-u.next, Delivered, 0, true)
			}
			under = nil
			h.Publish()
			settle()
			if tries > 100 {
				rt.Fatalf("%d slots stay out", s.Out())
			}
		}
		if s.Room() != 100000 || s.count != 0 || s.arena.Used() != 0 || posted != settled || f.out != 0 || h.Err() != nil {
			rt.Fatalf("room %d, %d datagrams, %d bytes of the arena, %d posted and %d settled, flow %d, %v",
				s.Room(), s.count, s.arena.Used(), posted, settled, f.out, h.Err())
		}
	})
}

// What a part of a train gives back is that part, and no more than is left of it whatever
// the daemon says: the rest stays charged until its own outcome.
func TestPartGivesBackItsPart(t *testing.T) {
	const room = 100000
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SndBuf: room, RcvBuf: 1000, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	sl, err := s.Grab(f, 5000)
	if err != nil {
		t.Fatal(err)
	}
	s.Post(&sl, KindEach, 5000, 5, 5000, 1, false)
	ids, _ := takeAll(t, h)
	for i, c := range []struct{ told, datagrams, bytes int }{{1, 4, 4000}, {2, 2, 2000}, {1, 1, 1000}} {
		h.Outcome(ids[0], uint64(1+i), c.told, Delivered, 0, false)
		h.Publish()
		var v Event
		if ok, err := s.NextEvent(&v); !ok || err != nil || int(v.Count) != c.told {
			t.Fatalf("part %d: %+v, %v, %v", i, v, ok, err)
		}
		s.EventsTaken()
		if s.count != c.datagrams || s.Room() != room-c.bytes || s.Out() != 1 {
			t.Errorf("part %d: %d datagrams and %d bytes are charged, want %d and %d", i, s.count, room-s.Room(), c.datagrams, c.bytes)
		}
	}
	h.Outcome(ids[0], 5, 1, Delivered, 0, true)
	h.Publish()
	var v Event
	if ok, err := s.NextEvent(&v); !ok || err != nil || s.count != 0 || s.Room() != room || s.Out() != 0 || s.arena.Used() != 0 {
		t.Errorf("%v, %v: %d datagrams and %d bytes stay charged", ok, err, s.count, room-s.Room())
	}
}

// Entries of the flow table go to new destinations when nothing of theirs is
// under way; generations tell them apart.
func TestSenderFlows(t *testing.T) {
	s, _, h := clientPair(t, Spec{Flows: 8})
	dst := func(i int) netip.AddrPort { return netip.AddrPortFrom(clientDst.Addr(), uint16(i)) }
	gens := map[string]bool{}
	for i := range 50 {
		f := openFlow(t, s, h, dst(i))
		name := fmt.Sprint(f.Index(), "/", f.Gen())
		if f.Gen()%2 != 1 || gens[name] {
			t.Fatalf("flow %s for a second time, or not odd", name)
		}
		gens[name] = true
		if again, err := s.Flow(dst(i)); err != nil || again != f || s.Known(dst(i)) != f {
			t.Fatal("another flow for the same destination", err)
		}
	}
	var slots []Slot
	for i := range 8 {
		f := openFlow(t, s, h, dst(100+i))
		sl, err := s.Grab(f, 10)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, sl)
	}
	if _, err := s.Flow(dst(200)); err != ErrFlows {
		t.Errorf("a ninth flow: %v", err)
	}
	s.Drop(&slots[3])
	busy := s.Known(dst(103))
	f := openFlow(t, s, h, dst(200))
	if !busy.Away() || busy.Index() != f.Index() || s.State(busy).State() != FlowUnknown {
		t.Errorf("%+v was not replaced by %+v", busy, f)
	}
	s.Refused(f)
	s.Refused(f)
	if s.Known(dst(200)) != nil {
		t.Error("a refused flow is still found")
	}
	refused := s.Known(dst(104))
	s.Refused(refused) // with a slot out: its entry is kept until that is back
	if g := openFlow(t, s, h, dst(201)); g.Index() != f.Index() {
		t.Errorf("flow %d, want %d", g.Index(), f.Index())
	}
	if _, err := s.Flow(dst(202)); err == nil { // 201 is idle and may go
		takeAll(t, h)
	}
	s.Drop(&slots[4])
	if g := openFlow(t, s, h, dst(203)); g.Index() != refused.Index() {
		t.Errorf("flow %d, want %d", g.Index(), refused.Index())
	}
}

func TestSenderRingFull(t *testing.T) {
	s, _, h := clientPair(t, Spec{Sends: 4})
	f := openFlow(t, s, h, clientDst)
	var slots []Slot
	for range 4 {
		sl, err := s.Grab(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, sl)
	}
	if _, err := s.Grab(f, 1); err != ErrRing { // what is grabbed has its place
		t.Error(err)
	}
	for i := range slots {
		s.Post(&slots[i], KindEach, 1, 1, 1, uint64(i+1), false)
	}
	if _, err := s.Flow(netip.MustParseAddrPort("10.0.0.9:1")); err != ErrRing {
		t.Error(err)
	}
	head := s.Head()
	takeAll(t, h)
	if _, err := s.Grab(f, 1); err != nil || s.Head() == head {
		t.Error(err)
	}
}

// A client that reads no events stops at what the daemon takes.
func TestSenderOutstanding(t *testing.T) {
	s, _, h := clientPair(t, Spec{})
	f := openFlow(t, s, h, clientDst)
	n := 0
	for ; ; n++ {
		sl, err := s.Grab(f, 0)
		if err == ErrMany {
			break
		}
		if err == ErrRing {
			if _, posts := takeAll(t, h); len(posts) == 0 {
				t.Fatal("the daemon takes nothing more")
			}
			n--
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 0, 1, 0, uint64(n+1), false)
		s.last.word = nil
	}
	if takeAll(t, h); n != MaxOutstanding || h.HasPosts() {
		t.Errorf("%d descriptors", n)
	}
}

// What the daemon cannot have written is an error.
func TestClientsDistrust(t *testing.T) {
	for name, c := range map[string]Event{
		"no kind":        {},
		"unknown cookie": {Kind: EventOutcome, Cookie: 12345, Count: 1, Flags: EventLast},
		"a cookie twice": {Kind: EventOutcome, Cookie: 0, Count: 1, Flags: EventLast},
		"the next one":   {Kind: EventOutcome, Cookie: 1, Count: 1, Flags: EventLast},
	} {
		s, _, h := clientPair(t, Spec{})
		f := openFlow(t, s, h, clientDst)
		sl, err := s.Grab(f, 4)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 4, 1, 4, 1, false)
		ids, _ := takeAll(t, h)
		h.Outcome(ids[0], 1, 1, Delivered, 0, true)
		h.Publish()
		c.put(s.r.eventEntry(1))
		s.r.EventTail().Add(1)
		var v Event
		if ok, err := s.NextEvent(&v); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := s.NextEvent(&v); ok || !Bad(err) {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
	src := netip.MustParseAddrPort("10.0.0.2:1")
	for name, d := range map[string]RecvDesc{
		"no kind":           {Src: src},
		"no datagrams":      {Src: src, Word: MakeWord(KindEach, 10, 0)},
		"too many":          {Src: src, Word: MakeWord(KindEach, 0, MaxTrain+1)},
		"too long":          {Src: src, Word: MakeWord(KindEach, MaxDatagram+1, 1)},
		"uneven":            {Src: src, Word: MakeWord(KindEach, 10, 3)},
		"short of a table":  {Src: src, Word: MakeWord(KindTable, 7, 2)},
		"beyond the arena":  {Src: src, Word: MakeWord(KindEach, 65, 1), Slot: 1<<22 - 64},
		"far beyond":        {Src: src, Word: MakeWord(KindEach, 1, 1), Slot: 1 << 63},
		"a flow to open":    {Src: src, Word: MakeWord(KindOpen, 0, 0)},
		"end of the region": {Src: src, Word: MakeWord(KindEach, 1<<20, 1), Slot: 1 << 22},
	} {
		_, x, _ := clientPair(t, Spec{RecvArena: 1 << 22})
		d.put(x.r.recvEntry(0))
		x.r.RecvTail().Store(1)
		if ok, err := x.Peek(&d); ok || !Bad(err) {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
	_, x, _ := clientPair(t, Spec{})
	x.r.RecvTail().Store(DefaultReceives + 1)
	if ok, err := x.Peek(new(RecvDesc)); ok || !Bad(err) {
		t.Errorf("tail: %v %v", ok, err)
	}
}

// No table of lengths leads out of its body.
func TestWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "body")
		n := rapid.IntRange(1, max(1, len(body)/4)).Draw(t, "n")
		kind := KindTable
		if 4*n > len(body) {
			kind, body = KindEach, body[:len(body)/n*n]
		}
		lens, rest := Walk(MakeWord(kind, len(body), n), body)
		if lens.Left() != n || (lens.Each() >= 0) != (kind == KindEach) {
			t.Fatalf("%d left, each %d", lens.Left(), lens.Each())
		}
		for range n {
			want := lens.Peek(len(rest))
			k := lens.Next(len(rest))
			if k != want || k < 0 || k > len(rest) {
				t.Fatalf("length %d of %d, peeked %d", k, len(rest), want)
			}
			rest = rest[k:]
		}
		if lens.Left() != 0 {
			t.Fatal(lens.Left())
		}
	})
}

// TestStarved: what is held is scattered over the arena, so that no block is left
// for a larger datagram. The client is told, and woken for it, when nothing but a
// release can help: not while something is to be read, nor before the daemon
// has counted what was released.
func TestStarved(t *testing.T) {
	_, x, h := clientPair(t, Spec{RecvArena: 1 << 18, RcvBuf: 1 << 18})
	src := netip.MustParseAddrPort("10.0.0.2:1")
	place := func(n int) bool { _, ok := h.PlaceCopy(src, wire.One(make([]byte, n)), NoLane, 0); return ok }
	var held []uint64
	for n := 0; place(4096); n++ {
		h.closeTrain()
		h.Publish()
		var d RecvDesc
		if ok, err := x.Peek(&d); !ok || err != nil {
			t.Fatal(ok, err)
		}
		x.Take()
		x.Taken()
		held = append(held, d.Slot)
	}
	if len(held) != 64 {
		t.Fatalf("%d slots of 64", len(held))
	}
	// collect is what the daemon does with releases; it tells the client at the end.
	collect := func() (ring bool) {
		if _, _, _, err := h.Releases(); err != nil {
			t.Fatal(err)
		}
		return h.Publish()
	}
	h.Publish()
	if !x.Starved() {
		t.Error("a full arena, all of it held")
	}
	kept := held[:0]
	for i, slot := range held {
		if i%8 == 3 { // one in each block of 32 KiB
			kept = append(kept, slot)
			continue
		}
		x.Release(slot)
	}
	x.Released()
	if x.Starved() {
		t.Error("the daemon does not know of the releases yet")
	}
	collect()
	if x.Starved() {
		t.Error("nothing has been refused since")
	}
	x.r.ClientSleeps().Store(ClientWaitsRecv)
	if place(32 << 10) {
		t.Fatal("a block of 32 KiB is left: nothing is tested")
	}
	if !h.Publish() {
		t.Error("a client that waits for datagrams is not told that it holds them up")
	}
	if !x.Starved() || x.r.RoomWanted().Load() != 1+56 {
		t.Errorf("starved %v, the word is %d", x.Starved(), x.r.RoomWanted().Load())
	}
	if !place(4096) {
		t.Fatal("no room for a small one")
	}
	h.Publish()
	if x.Starved() {
		t.Error("starved with a datagram to read")
	}
	var d RecvDesc
	if ok, err := x.Peek(&d); !ok || err != nil {
		t.Fatal(ok, err)
	}
	x.Take()
	x.Taken()
	if !x.Starved() {
		t.Error("the small one is read, and the large one still has no room")
	}
	for _, slot := range append(kept, d.Slot) {
		x.Release(slot)
	}
	x.Released()
	collect()
	if !place(32<<10) || x.Starved() {
		t.Error("all is released, and there is no room")
	}
	h.Publish()
	if x.r.RoomWanted().Load() != 0 {
		t.Error("room is wanted although there is some")
	}
	h.WantRoom(true) // the owner's wish counts as well
	h.Publish()
	if x.Starved() { // a datagram is there
		t.Error("starved with a datagram to read")
	}
}

// TestSingle: the daemon is told whether datagrams are read one by one, when that changes.
func TestSingle(t *testing.T) {
	_, x, _ := clientPair(t, Spec{})
	for i, on := range []bool{true, true, false, false, true} {
		x.Single(on)
		if got := x.r.ClientSingle().Load() == 1; got != on {
			t.Errorf("change %d: the daemon is told %v, want %v", i, got, on)
		}
	}
	x.r.ClientSingle().Store(7) // not what was told; it is not told again
	if x.Single(true); x.r.ClientSingle().Load() != 7 {
		t.Error("what has not changed was written")
	}
}
