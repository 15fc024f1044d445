package shm

import (
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/wire"
)

// TestOverflowKeepsAll: whatever happens while the event ring is full, the client hears
// of every outcome once and in order, and of each destination and group of ports at
// least how it is at last.
func TestOverflowKeepsAll(t *testing.T) {
	rnd := rand.New(rand.NewSource(11))
	for range 60 {
		s := smallSpec()
		s.Sends, s.Receives = 64, 8
		h, m := newPair(t, s, nil)
		m.flow(0, 1, testDst)
		type told struct {
			tag     uint64
			outcome uint8
		}
		var want, got []told
		wantState, gotState := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
		var wantFreed, gotFreed uint64
		read := func() {
			for _, v := range m.events() {
				switch v.Kind {
				case EventOutcome:
					for k := range uint64(v.Count) {
						got = append(got, told{v.Tag + k, v.Outcome})
					}
				case EventCongestion:
					gotState[v.Dst] = v.Flags&EventCongested != 0
				case EventFreed:
					gotFreed |= v.Tag
				}
			}
		}
		type open struct {
			id    uint32
			tag   uint64
			count int
		}
		var under []open
		tag := uint64(1)
		for range 400 {
			switch rnd.Intn(8) {
			case 0, 1:
				if len(under) > 40 {
					continue
				}
				n := 1 + rnd.Intn(4)
				m.post(MakeWord(KindEach, 8*n, n), SendDesc{Tag: tag, Gen: 1, Cookie: uint32(tag)}, nil)
				p := next(t, h)
				id, _ := h.Taken(p, MakeTarget(testDst), true)
				under = append(under, open{id, tag, n})
				tag += uint64(n)
			case 2, 3, 4:
				if len(under) == 0 {
					continue
				}
				i := rnd.Intn(len(under))
				u := &under[i]
				n := 1 + rnd.Intn(u.count)
				kind := uint8(Delivered + rnd.Intn(3))
				h.Outcome(u.id, u.tag, n, kind, 0, n == u.count)
				for k := range uint64(n) {
					want = append(want, told{u.tag + k, kind})
				}
				if u.tag, u.count = u.tag+uint64(n), u.count-n; u.count == 0 {
					under = append(under[:i], under[i+1:]...)
				}
			case 5:
				dst := netip.AddrPortFrom(testDst.Addr(), uint16(1+rnd.Intn(6)))
				on := rnd.Intn(2) == 0
				h.Changed(dst, on)
				wantState[dst] = on
			case 6:
				mask := uint64(1) << rnd.Intn(64)
				h.Freed(mask)
				wantFreed |= mask
			case 7:
				h.Publish()
				if rnd.Intn(3) == 0 {
					read()
				}
			}
			viewed(t, h)
		}
		for i := 0; h.overflow.n > 0 || h.eventTail != h.eventPub || i == 0; i++ {
			h.Publish()
			viewed(t, h)
			read()
			if i > 10000 {
				t.Fatal("events stay in the overflow")
			}
		}
		read()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("told %v, want %v", got, want)
		}
		if fmt.Sprint(gotState) != fmt.Sprint(wantState) || gotFreed != wantFreed {
			t.Fatalf("destinations %v and groups %#x, want %v and %#x", gotState, gotFreed, wantState, wantFreed)
		}
	}
}

// TestOverflowIsBounded: changes of very many destinations become one event that says to
// look at all of them; those that have their place keep it.
func TestOverflowIsBounded(t *testing.T) {
	var o overflow
	dst := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 7)
	}
	place := 2*unsafe.Sizeof(queued{}) + 2*(unsafe.Sizeof(netip.AddrPort{})+8) // lists and tables are half empty
	if n := maxQueuedChanges * place; n > 16<<10 {
		t.Errorf("changes take %d bytes, for which nobody is charged but with the 64 KiB of a socket", n)
	}
	const before = 2000 // outcomes stand before them
	for i := range before {
		o.add(&Event{Kind: EventOutcome, Count: 1}, uint32(i))
	}
	for i := range maxQueuedChanges {
		o.add(&Event{Kind: EventCongestion, Dst: dst(i), Flags: EventCongested}, none)
	}
	if o.n != before+maxQueuedChanges {
		t.Fatalf("%d events of %d destinations", o.n-before, maxQueuedChanges)
	}
	o.add(&Event{Kind: EventCongestion, Dst: dst(5)}, none)
	if o.n != before+maxQueuedChanges || o.q[before+5].v.Flags != 0 {
		t.Errorf("a second change of one destination: %d events, %+v", o.n-before, o.q[before+5].v)
	}
	for i := range 10 {
		o.add(&Event{Kind: EventCongestion, Dst: dst(maxQueuedChanges + i)}, none)
	}
	if last := o.q[len(o.q)-1].v; o.n != before+maxQueuedChanges+1 || last.Kind != EventFreed || last.Tag != ^uint64(0) {
		t.Errorf("one destination more: %d events, the last %+v", o.n, last)
	}
	for i := range before { // what has gone makes room for what stands behind
		o.first++
		if o.first > 64 && i%7 == 0 {
			o.add(&Event{Kind: EventOutcome, Tag: uint64(10 * i), Count: 1}, uint32(i))
		}
	}
	for k, i := range o.dsts {
		if at := i - o.base; at >= o.first && o.q[at].v.Dst != k {
			t.Fatalf("%v is looked for where %+v stands", k, o.q[at].v)
		}
	}
	if at := o.freed - o.base; at < o.first || o.q[at].v.Kind != EventFreed {
		t.Errorf("the event of freed groups is looked for at %d of %d", at, len(o.q))
	}
	o.first += 10 // and the changes that have gone for others
	for i := range 11 {
		o.add(&Event{Kind: EventCongestion, Dst: dst(1000 + i)}, none)
	}
	if _, tenth := o.dsts[dst(1009)]; !tenth || len(o.dsts) != maxQueuedChanges {
		t.Errorf("after 10 have gone %d destinations have a place", len(o.dsts))
	}
	n := o.n
	o.add(&Event{Kind: EventFreed, Tag: 1}, none)
	if o.n != n {
		t.Error("groups of ports have two events")
	}
	o.first, o.n = len(o.q), 0
	o.add(&Event{Kind: EventFreed, Tag: 2}, none)
	o.add(&Event{Kind: EventFreed, Tag: 4}, none)
	o.add(&Event{Kind: EventCongestion, Dst: dst(5)}, none)
	if o.n != 2 || o.q[o.first].v.Tag != 6 || len(o.dsts) != 1 || o.dsts[dst(5)] != 1 {
		t.Errorf("after it was empty: %d events, %+v, %v", o.n, o.q[o.first].v, o.dsts)
	}
}

// Which events are one: outcomes of one descriptor, of one kind and reason, whose tags
// follow each other; groups of ports always.
func TestEventsJoin(t *testing.T) {
	base := Event{Kind: EventOutcome, Outcome: Delivered, Why: 3, Tag: 10, Count: 2}
	for what, c := range map[string]struct {
		edit func(*Event)
		want bool
	}{
		"the next tags":   {func(*Event) {}, true},
		"the last":        {func(v *Event) { v.Flags = EventLast }, true},
		"another outcome": {func(v *Event) { v.Outcome = Failed }, false},
		"another reason":  {func(v *Event) { v.Why = 4 }, false},
		"a gap":           {func(v *Event) { v.Tag = 13 }, false},
		"tags before":     {func(v *Event) { v.Tag = 9 }, false},
		"a refusal":       {func(v *Event) { v.Kind = EventRefused }, false},
		"a change":        {func(v *Event) { v.Kind = EventCongestion }, false},
	} {
		w, v := base, base
		v.Tag, v.Count = 12, 3
		c.edit(&v)
		if got := join(&w, &v); got != c.want {
			t.Errorf("%s: joined %v", what, got)
		} else if got && (w.Count != 5 || w.Tag != 10 || w.Flags != v.Flags) {
			t.Errorf("%s: %+v", what, w)
		} else if !got && w != base {
			t.Errorf("%s: changed to %+v", what, w)
		}
	}
	a, b := Event{Kind: EventFreed, Tag: 1}, Event{Kind: EventFreed, Tag: 6}
	if !join(&a, &b) || a.Tag != 7 {
		t.Errorf("groups of ports: %+v", a)
	}
	if join(&a, &Event{Kind: EventOutcome}) || join(&Event{Kind: EventOutcome}, &a) {
		t.Error("groups of ports and an outcome are one")
	}
}

// TestEachUnread: what stands in the receive ring is told oldest first, each datagram with
// its share, until the asker has enough; a head that cannot be tells nothing.
func TestEachUnread(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	one, two := testDst, netip.MustParseAddrPort("10.0.0.3:1")
	place := func(src netip.AddrPort, body string, count int, table bool) {
		t.Helper()
		if _, ok := h.PlaceCopy(src, wire.Train{Body: []byte(body), Count: count, Table: table}, NoLane, 0); !ok {
			t.Fatal("no room")
		}
	}
	unread := func(most int) string {
		var got []string
		h.EachUnread(func(src netip.AddrPort, bytes int) bool {
			got = append(got, fmt.Sprint(src.Port(), ":", bytes))
			return len(got) < most
		})
		return fmt.Sprint(got)
	}
	place(one, "abcabc", 2, false)
	place(two, "\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x02vwxyzab", 3, true)
	place(one, "", 1, false)
	if got := unread(99); got != "[5000:3 5000:3 1:2 1:2 1:3 5000:0]" {
		t.Errorf("unread are %s", got)
	}
	if got := unread(3); got != "[5000:3 5000:3 1:2]" {
		t.Errorf("the first three are %s", got)
	}
	h.Publish()
	r := h.Region()
	r.RecvHead().Store(1)
	if got := unread(99); got != "[1:2 1:2 1:3 5000:0]" {
		t.Errorf("after one was taken: %s", got)
	}
	for _, head := range []uint64{4, 1 << 40, ^uint64(1)} {
		r.RecvHead().Store(head)
		if got := unread(99); got != "[]" {
			t.Errorf("with a head of %d: %s", head, got)
		}
	}
	r.RecvHead().Store(^uint64(0)) // so far back that it could be: what is there is told, and nothing else
	if got := unread(99); got != "[5000:3 5000:3 1:2 1:2 1:3 5000:0]" {
		t.Errorf("with a head before the first: %s", got)
	}
	r.RecvHead().Store(3)
	if got := unread(99); got != "[]" {
		t.Errorf("all was taken: %s", got)
	}
	m.head = 3
	r.RecvHead().Store(0)
	h.Leave()
	if got := unread(99); got != "[]" {
		t.Errorf("of a region that was left: %s", got)
	}
}

// TestBacklog: of the events that wait so many find room as the client has read, as far as it can be
// believed, and no more than there are.
func TestBacklog(t *testing.T) {
	w := newHostileWorld(t)
	h := w.h
	n := uint64(h.r.Events)
	for i := range 2*n + 1 {
		h.Changed(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(2+i)), true)
		h.Publish()
		if got := h.Backlog(); got != 0 {
			t.Fatalf("after %d events %d find room", i+1, got)
		}
	}
	for _, c := range []struct {
		head  uint64
		finds int
	}{{1, 1}, {n + 1, 1}, {^uint64(0), 1}, {n, int(n)}} {
		h.r.EventHead().Store(c.head)
		if got := h.Backlog(); got != c.finds {
			t.Errorf("of %d that wait %d find room when %d are read, want %d", n+1, got, c.head, c.finds)
		}
	}
	h.Publish()
	h.r.EventHead().Store(2 * n)
	if got := h.Backlog(); got != 1 {
		t.Errorf("of one that waits %d find room", got)
	}
	h.Publish()
	if got := h.Backlog(); got != 0 {
		t.Errorf("when none waits %d find room", got)
	}
}

// TestEvacuationCountsPagesOnce: what Evacuate takes is the pages that hold something of what is
// needed, however much of it each holds.
func TestEvacuationCountsPagesOnce(t *testing.T) {
	r := newRegion(t, smallSpec())
	n, page := r.SendArenaBytes, pageBytes
	if n < 4*page {
		t.Skip("pages are too large here")
	}
	for _, c := range []struct {
		needed []Body
		pages  int
	}{
		{nil, 0},
		{[]Body{{64, 0}, {n, 1}, {n - 1, 2}, {0, -1}, {^uint64(0), 1}}, 0},
		{[]Body{{0, 1}}, 1},
		{[]Body{{0, 1}, {64, 1}, {page - 1, 1}, {0, int(page)}}, 1},
		{[]Body{{page - 1, 2}}, 2},
		{[]Body{{page - 1, 2}, {page, 1}, {3 * page, 1}}, 3},
		{[]Body{{n - 1, 1}, {0, int(n)}}, int(n / page)},
	} {
		if got, want := r.Evacuation(c.needed), int64(c.pages)*int64(page); got != want {
			t.Errorf("%v: %d bytes, want %d", c.needed, got, want)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestEvacuateEdges: of a dead client's arena a body up to its very end is kept, and what
// lies outside it is not looked for; the rest reads as nothing.
func TestEvacuateEdges(t *testing.T) {
	r := newRegion(t, smallSpec())
	n := r.SendArenaBytes
	for i := range n {
		r.sendArena[i] = 0xaa
	}
	err := r.Evacuate([]Body{{n - 64, 64}, {0, 10}, {128, 0}, {256, -1}, {n - 32, 33}, {n, 1}, {n + 64, 1}, {^uint64(0), 1}})
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[uint64]byte{0: 0xaa, 9: 0xaa, 10: 0, 128: 0, 256: 0, n - 65: 0, n - 64: 0xaa, n - 1: 0xaa} {
		if got := r.sendArena[at]; got != want {
			t.Errorf("byte %d of %d is %#x, want %#x", at, n, got, want)
		}
	}
	if r.FD != -1 || r.LendFD != -1 || !r.private {
		t.Errorf("descriptors %d and %d are open, private: %v", r.FD, r.LendFD, r.private)
	}
	r.sendArena[0] = 7
	r.Forget() // private memory is not forgotten
	if r.sendArena[0] != 7 {
		t.Error("memory of this process's own was let go of")
	}
	if err := r.Close(); err != nil || r.mem != nil || r.sendArena != nil || r.recvArena != nil {
		t.Errorf("closed: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	r.Forget()
}

// TestForget: what a region holds outlives the pages of this process, all of which go.
func TestForget(t *testing.T) {
	r := newRegion(t, testSpec())
	for at := 0; at < len(r.sendArena); at += 4096 {
		r.sendArena[at] = byte(at >> 12)
	}
	pages, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Skip(err)
	}
	defer pages.Close()
	mapped := func() (n int) {
		b := make([]byte, len(r.mem)/int(pageBytes)*8)
		if _, err := pages.ReadAt(b, int64(uintptr(r.base)/uintptr(pageBytes)*8)); err != nil {
			t.Fatal(err)
		}
		for ; len(b) > 0; b = b[8:] {
			n += int(le.Uint64(b) >> 63)
		}
		return n
	}
	if n := mapped(); n < len(r.sendArena)/int(pageBytes) {
		t.Fatalf("%d pages are mapped", n)
	}
	r.Forget()
	if n := mapped(); n != 0 {
		t.Errorf("%d pages are mapped still", n)
	}
	for at := 0; at < len(r.sendArena); at += 4096 {
		if r.sendArena[at] != byte(at>>12) {
			t.Fatalf("byte %d is lost", at)
		}
	}
}

// Outcome ends datagrams of id with an outcome.
func (h *Host) Outcome(id uint32, tag uint64, count int, outcome, why uint8, last bool) {
	h.Ended(id, count, last, &Event{Kind: EventOutcome, Outcome: outcome, Why: why, Tag: tag})
}

// viewed fails if what the reactor sees is not what is.
func viewed(t *testing.T, h *Host) {
	t.Helper()
	was, due := h.stored, h.due
	if h.refresh(); h.stored != was || h.view.Load() != was {
		t.Fatalf("the view is %#x, and should be %#x", was, h.stored)
	}
	h.due = due
}

// TestOutcomesOfTwo: outcomes of two descriptors never become one event, in the ring or behind it.
func TestOutcomesOfTwo(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	m.flow(0, 1, testDst)
	var ids []uint32
	for i := range uint64(h.r.Events) + 4 {
		m.post(MakeWord(KindEach, 8, 1), SendDesc{Tag: i, Gen: 1}, nil)
		id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
		viewed(t, h)
		ids = append(ids, id)
	}
	for i, id := range ids {
		h.Outcome(id, uint64(i), 1, Delivered, 0, true) // the tags follow each other
		viewed(t, h)
	}
	if h.overflow.n != 4 {
		t.Errorf("%d events wait, want 4", h.overflow.n)
	}
	h.Publish()
	got := m.events()
	h.Publish()
	if got = append(got, m.events()...); len(got) != len(ids) {
		t.Errorf("%d events of %d descriptors", len(got), len(ids))
	}
}
