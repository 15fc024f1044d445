package shm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// Each step of either end changes exactly the words that it owns, to exactly the
// value that docs/shm.md says, and every account comes back to where it began.

// words are the shared words, as anybody who maps the region sees them.
func words(r *Region) string {
	return fmt.Sprint("send ", r.SendTail().Load(), r.SendHead().Load(), " event ", r.EventTail().Load(), r.EventHead().Load(),
		" receive ", r.RecvTail().Load(), r.RecvHead().Load(), " release ", r.ReleaseTail().Load(), r.ReleaseHead().Load(),
		" sleeps ", r.DaemonSleeps().Load(), r.ClientSleeps().Load(), " closed ", r.Closed().Load(), " wanted ", r.RoomWanted().Load())
}

// TestWordsStepByStep follows one datagram in each direction through all words.
func TestWordsStepByStep(t *testing.T) {
	s, x, h := clientPair(t, smallSpec())
	r := h.Region()
	is := func(step, want string) {
		t.Helper()
		if got := words(r); got != want {
			t.Errorf("%s:\n%s, want\n%s", step, got, want)
		}
	}
	f := openFlow(t, s, h, clientDst)
	is("a flow was opened", "send 1 1 event 0 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	sl, err := s.Grab(f, 3)
	if err != nil {
		t.Fatal(err)
	}
	copy(sl.Body, "abc")
	is("a slot was grabbed", "send 1 1 event 0 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	s.Post(&sl, KindEach, 3, 1, 3, 7, false)
	is("posted", "send 2 1 event 0 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	ids, _ := takeAll(t, h)
	is("taken", "send 2 2 event 0 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	h.Outcome(ids[0], 7, 1, Delivered, 0, true)
	is("an outcome that is not published", "send 2 2 event 0 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	h.Publish()
	is("published", "send 2 2 event 1 0 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	var v Event
	if ok, err := s.NextEvent(&v); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.EventsTaken()
	is("an event was read", "send 2 2 event 1 1 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")

	if _, ok := h.PlaceCopy(testDst, wire.One([]byte("abc")), NoLane, 0); !ok {
		t.Fatal("no room")
	}
	is("placed", "send 2 2 event 1 1 receive 0 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	h.Publish()
	is("shown", "send 2 2 event 1 1 receive 1 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	var d RecvDesc
	if ok, err := x.Peek(&d); !ok || err != nil {
		t.Fatal(ok, err)
	}
	x.Take()
	is("taken, not told", "send 2 2 event 1 1 receive 1 0 release 0 0 sleeps 0 0 closed 0 wanted 0")
	x.Taken()
	is("told", "send 2 2 event 1 1 receive 1 1 release 0 0 sleeps 0 0 closed 0 wanted 0")
	x.Release(d.Slot)
	is("released, not told", "send 2 2 event 1 1 receive 1 1 release 0 0 sleeps 0 0 closed 0 wanted 0")
	x.Released()
	is("the release is told", "send 2 2 event 1 1 receive 1 1 release 1 0 sleeps 0 0 closed 0 wanted 0")
	if n, cost, k, err := h.Releases(); n != 3 || cost != UnitBytes || k != 1 || err != nil {
		t.Error(n, cost, k, err)
	}
	is("the release is taken", "send 2 2 event 1 1 receive 1 1 release 1 1 sleeps 0 0 closed 0 wanted 0")
	h.WantRoom(true)
	h.Publish()
	is("room is wanted", "send 2 2 event 1 1 receive 1 1 release 1 1 sleeps 0 0 closed 0 wanted 2")
	if !h.Sleep() {
		t.Error("there is work")
	}
	is("asleep for room", "send 2 2 event 1 1 receive 1 1 release 1 1 sleeps 3 0 closed 0 wanted 2")
	h.Wake()
	h.WantRoom(false)
	h.Publish()
	is("awake", "send 2 2 event 1 1 receive 1 1 release 1 1 sleeps 0 0 closed 0 wanted 0")
	h.CloseWord(unix.EBADMSG)
	is("closed", fmt.Sprintf("send 2 2 event 1 1 receive 1 1 release 1 1 sleeps 0 0 closed %d wanted 0", uint32(unix.EBADMSG)))
	restored(t, s, h)
}

// restored checks that nothing is out and no account has kept anything.
func restored(t *testing.T, s *Sender, h *Host) {
	t.Helper()
	if s != nil {
		if s.out != 0 || s.count != 0 || s.spent != 0 || s.held != 0 || s.arena.Used() != 0 || s.Room() != s.sndBuf {
			t.Errorf("the client's accounts: %d slots, %d datagrams, %d bytes, %d held, %d of the arena", s.out, s.count, s.spent, s.held, s.arena.Used())
		}
		if len(s.free) != len(s.slots) {
			t.Errorf("%d of %d cookies are free", len(s.free), len(s.slots))
		}
	}
	if h.Outstanding() != 0 || h.OutstandingBytes() != 0 || h.OutstandingDatagrams() != 0 || h.nSlots != 0 || h.arena.Used() != 0 || h.overflow.n != 0 || len(h.touched) != 0 {
		t.Errorf("the daemon's accounts: %d descriptors, %d bytes, %d datagrams, %d slots, %d of the arena, %d events wait, %d touched",
			h.Outstanding(), h.OutstandingBytes(), h.OutstandingDatagrams(), h.nSlots, h.arena.Used(), h.overflow.n, len(h.touched))
	}
	seen := map[uint32]bool{}
	for i := h.freeSlots; i != none; i = h.slots[i].next {
		if seen[i] {
			t.Fatal("the list of free slots is a circle")
		}
		seen[i] = true
	}
	if len(seen) != len(h.slots) {
		t.Errorf("%d of %d slots are in the list of free ones", len(seen), len(h.slots))
	}
}

// TestAccountsManyTurns wraps every ring many times, with rings full to the last
// entry, and compares each body when it comes and when it is released, beside its
// neighbours.
func TestAccountsManyTurns(t *testing.T) {
	s, x, h := clientPair(t, smallSpec())
	f := openFlow(t, s, h, clientDst)
	rng := rand.New(rand.NewPCG(1, 2))
	type held struct {
		slot uint64
		body []byte
		was  []byte
	}
	var lent []held
	var tag uint64
	for turn := range 3000 {
		n := 1 + rng.IntN(4) // the ring has 4 entries
		var want [][]byte
		for range n {
			b := make([]byte, rng.IntN(300))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			sl, err := s.Grab(f, len(b))
			if err != nil {
				t.Fatal(turn, err)
			}
			copy(sl.Body, b)
			s.Post(&sl, KindEach, len(b), 1, len(b), tag, false)
			tag++
			want = append(want, b)
		}
		if n == 4 {
			if _, err := s.Grab(f, 1); !errors.Is(err, ErrRing) {
				t.Fatalf("a fifth of four: %v", err)
			}
		}
		ids, posts := takeAll(t, h)
		if len(ids) != n || h.Outstanding() != n {
			t.Fatal(turn, len(ids), n)
		}
		for i, p := range posts {
			if !bytes.Equal(p.Body, want[i]) || p.Tag != tag-uint64(n-i) {
				t.Fatalf("turn %d: body %d", turn, i)
			}
			if _, ok := h.PlaceCopy(netip.AddrPortFrom(testDst.Addr(), uint16(1+i)), wire.One(p.Body), NoLane, 0); !ok {
				t.Fatal(turn, "no room for", i)
			}
			h.Outcome(ids[i], p.Tag, 1, Delivered, 0, true)
		}
		if h.Publish() {
			t.Fatal("rung for a client that does not sleep")
		}
		var v Event
		for i := range n {
			if ok, err := s.NextEvent(&v); !ok || err != nil || v.Kind != EventOutcome || v.Tag != posts[i].Tag || v.Flags != EventLast {
				t.Fatalf("turn %d: %v %v %+v", turn, ok, err, v)
			}
		}
		if ok, err := s.NextEvent(&v); ok || err != nil {
			t.Fatal("an event too many", err)
		}
		s.EventsTaken()
		var d RecvDesc
		for i := range n {
			ok, err := x.Peek(&d)
			if errors.Is(err, ErrBorrowed) && x.Out() == 8 {
				for len(lent) > 0 { // all that are out: any order
					k := rng.IntN(len(lent))
					l := lent[k]
					if !bytes.Equal(l.body, l.was) {
						t.Fatal("what is borrowed changed")
					}
					x.Release(l.slot)
					lent = append(lent[:k], lent[k+1:]...)
				}
				x.Released()
				if _, _, _, err := h.Releases(); err != nil {
					t.Fatal(err)
				}
				ok, err = x.Peek(&d)
			}
			if !ok || err != nil {
				t.Fatal(turn, ok, err)
			}
			b := x.Body(&d)
			if !bytes.Equal(b, want[i]) || cap(b) != len(b) || d.Src.Port() != uint16(1+i) {
				t.Fatalf("turn %d: received %d is another", turn, i)
			}
			x.Take()
			lent = append(lent, held{d.Slot, b, bytes.Clone(b)})
		}
		if x.Taken() != h.r.RecvTail().Load() {
			t.Fatal("the head is not where all is taken")
		}
	}
	for _, l := range lent {
		x.Release(l.slot)
	}
	x.Released()
	h.Releases()
	restored(t, s, h)
	if h.Err() != nil {
		t.Error(h.Err())
	}
}

// TestRefusedArguments: each condition of Reserve and Place alone is enough.
func TestRefusedArguments(t *testing.T) {
	for name, spoil := range map[string]func(*Host){"dead": func(h *Host) { h.Leave() }, "hostile": func(h *Host) { h.hostile("x") }} {
		h, _ := newPair(t, smallSpec(), nil)
		off, _, _ := h.Reserve(10)
		spoil(h)
		if _, _, ok := h.Reserve(1); ok {
			t.Errorf("%s: reserved", name)
		}
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0); ok {
			t.Errorf("%s: copied", name)
		}
		if _, ok := h.Place(testDst, off, wire.One(make([]byte, 1)), NoLane, 0); ok || h.recvTail != 0 {
			t.Errorf("%s: placed", name)
		}
		h.Unreserve(off)
		restored(t, nil, h)
	}
	h, _ := newPair(t, smallSpec(), nil)
	for _, n := range []int{-1, MaxDatagram + 1} {
		if _, _, ok := h.Reserve(n); ok || h.noRoomFor != 0 {
			t.Errorf("%d bytes were reserved, or are waited for", n)
		}
	}
	if _, b, ok := h.Reserve(MaxDatagram); !ok || len(b) != MaxDatagram || cap(b) != MaxDatagram {
		t.Error("the largest is refused")
	}
	for _, c := range []struct {
		n, count int
		table    bool
		fits     bool
	}{
		{0, 1, false, true}, {MaxDatagram, 1, false, true}, {MaxDatagram + 1, 1, false, false},
		{10, 0, false, false}, {MaxTrain, MaxTrain, false, true}, {MaxTrain + 1, MaxTrain + 1, false, false},
		{10, 3, false, false}, {9, 3, false, true}, {8, 2, true, true}, {7, 2, true, false},
	} {
		if fits(wire.Train{Body: make([]byte, c.n), Count: c.count, Table: c.table}) != c.fits {
			t.Errorf("%+v", c)
		}
	}
}

// TestReleaseChecked: a slot is taken back once, only where one begins, only when it was shown.
func TestReleaseChecked(t *testing.T) {
	for name, slot := range map[string]func(h *Host, m *mate, d *RecvDesc) uint64{
		"twice":         func(h *Host, m *mate, d *RecvDesc) uint64 { m.release(d.Slot); return d.Slot },
		"inside":        func(h *Host, m *mate, d *RecvDesc) uint64 { return d.Slot + UnitBytes },
		"uneven":        func(h *Host, m *mate, d *RecvDesc) uint64 { return d.Slot + 1 },
		"just beyond":   func(h *Host, m *mate, d *RecvDesc) uint64 { return h.r.RecvArenaBytes },
		"far beyond":    func(h *Host, m *mate, d *RecvDesc) uint64 { return 1 << 63 },
		"only reserved": func(h *Host, m *mate, d *RecvDesc) uint64 { off, _, _ := h.Reserve(1); return off },
		"not shown": func(h *Host, m *mate, d *RecvDesc) uint64 {
			h.PlaceCopy(testDst, wire.One([]byte("y")), NoLane, 0)
			h.closeTrain()
			return h.slots[*h.slotOf(1)].off
		},
		"nothing is out": func(h *Host, m *mate, d *RecvDesc) uint64 { m.release(d.Slot); h.Releases(); return d.Slot },
	} {
		h, m := newPair(t, smallSpec(), nil)
		h.PlaceCopy(testDst, wire.One(make([]byte, 200)), NoLane, 0)
		h.Publish()
		var d RecvDesc
		m.r.GetRecv(0, &d)
		m.release(slot(h, m, &d))
		if _, _, _, err := h.Releases(); !errors.Is(err, unix.EBADMSG) || h.Err() == nil {
			t.Errorf("%s: %v", name, err)
		}
		if h.view.Load()&viewErr == 0 || !h.HasPosts() {
			t.Errorf("%s: the reactor does not see that it is over", name)
		}
	}
	// As many as the ring has entries are none too many, one more is.
	for n := range uint64(2) {
		h, m := newPair(t, smallSpec(), nil)
		m.r.ReleaseTail().Store(8 + n)
		_, _, _, err := h.Releases()
		if tooMany := strings.Contains(fmt.Sprint(err), "release tail"); !errors.Is(err, unix.EBADMSG) || tooMany != (n > 0) {
			t.Error(err)
		}
		if taken := m.r.ReleaseHead().Load(); taken != 0 {
			t.Errorf("%d releases of nothing were taken", taken)
		}
	}
}

// TestFurtherThanTheRing: a tail or head at the ring's size is right, one further is not.
func TestFurtherThanTheRing(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	m.r.SendTail().Store(4)
	if h.Posted() != 4 {
		t.Error("a full ring is not believed")
	}
	m.r.SendTail().Store(5)
	if h.Posted() != 0 {
		t.Error("more than a full ring is believed")
	}
	var p Post
	if _, err := h.Next(&p); !errors.Is(err, unix.EBADMSG) {
		t.Error(err)
	}
	for n, bad := range map[uint64]bool{4: false, 5: true, ^uint64(0): true} { // 4 are shown
		h, m := newPair(t, smallSpec(), nil)
		for i := range 4 {
			h.PlaceCopy(netip.AddrPortFrom(testDst.Addr(), uint16(1+i)), wire.One(nil), NoLane, 0)
		}
		h.Publish()
		m.r.RecvHead().Store(n)
		_, ok := h.PlaceCopy(testDst, wire.One(nil), NoLane, 0)
		if ok == bad || (h.Err() != nil) != bad {
			t.Errorf("receive head %d: %v %v", n, ok, h.Err())
		}
	}
	for n, bad := range map[uint64]bool{4: false, 5: true, ^uint64(0): true} {
		h, m := newPair(t, smallSpec(), nil)
		for i := range 4 {
			h.Changed(netip.AddrPortFrom(testDst.Addr(), uint16(1+i)), true)
		}
		h.Publish()
		m.r.EventHead().Store(n)
		h.Changed(testDst, true)
		if (h.Err() != nil) != bad {
			t.Errorf("event head %d: %v", n, h.Err())
		}
	}
}

// TestWakes: whoever stores news wakes a daemon that waits for that, and no other.
func TestWakes(t *testing.T) {
	s, x, h := clientPair(t, smallSpec())
	w := h.r.DaemonSleeps()
	f := openFlow(t, s, h, clientDst)
	post := func() {
		sl, err := s.Grab(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 1, 1, 1, 0, false)
	}
	w.Store(DaemonWaitsRoom)
	post()
	if w.Load() != DaemonWaitsRoom {
		t.Error("woken for a post")
	}
	w.Store(DaemonWaitsSend | DaemonWaitsRoom)
	post()
	if w.Load() != 0 {
		t.Error("not woken for a post")
	}
	h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0)
	h.Publish()
	var d RecvDesc
	x.Peek(&d)
	x.Take()
	w.Store(DaemonWaitsSend)
	x.Taken()
	if w.Load() != DaemonWaitsSend {
		t.Error("woken for room that it does not want")
	}
	x.shown--
	w.Store(DaemonWaitsSend | DaemonWaitsRoom)
	x.Taken()
	if w.Load() != 0 {
		t.Error("not woken for room in the receive ring")
	}
	w.Store(DaemonWaitsSend)
	x.Taken() // nothing is new
	x.Release(d.Slot)
	x.Released()
	if w.Load() != DaemonWaitsSend {
		t.Error("woken for a release that it does not want")
	}
	w.Store(DaemonWaitsRoom)
	x.Released()
	if w.Load() != 0 {
		t.Error("not woken for a release")
	}
	ids, posts := takeAll(t, h)
	for i := range ids {
		h.Outcome(ids[i], posts[i].Tag, 1, Delivered, 0, true)
	}
	h.Publish()
	var v Event
	for ok := true; ok; {
		ok, _ = s.NextEvent(&v)
	}
	w.Store(DaemonWaitsRoom)
	s.EventsTaken()
	if w.Load() != 0 {
		t.Error("not woken for events that were read")
	}
}
