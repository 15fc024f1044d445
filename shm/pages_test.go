package shm

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// allocated is how many bytes of a part have memory, whoever touched it.
func allocated(t testing.TB, fd int) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Blocks) * 512
}

// untouched is a region whose client has touched the first two pages and nothing else.
func untouched(t *testing.T, s Spec) (*Host, *mate) {
	t.Helper()
	r, err := Create(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		r.Disown()
	})
	c, err := Open(r.FD, r.LendFD, r.RegionBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if got, want := allocated(t, r.FD), (HeaderBytes+wordsBytes+int(pageBytes)-1)&^(int(pageBytes)-1); got != want {
		t.Fatalf("%d bytes of the client's part are there, not %d", got, want)
	}
	if n := allocated(t, r.ownFD); n != 0 {
		t.Fatalf("%d bytes of the daemon's part are there", n)
	}
	if err := errors.Join(Seal(r.FD), r.Touched()); err != nil {
		t.Fatal(err)
	}
	r.SetLocal(r.Local)
	if err := c.ReadHeader(); err != nil {
		t.Fatal(err)
	}
	return NewHost(r, nil), &mate{t: t, r: c}
}

// TestNothingIsTouchedForAClient: whatever of its part a client points to and has not
// touched, the daemon does not touch it either; it asks, and ends the socket if nobody has. What
// was only moved elsewhere by the kernel is used once that is known.
func TestNothingIsTouchedForAClient(t *testing.T) {
	touch := func(m *mate, at uint64) { m.r.word64(at).Load() }
	word := func(m *mate, n uint64) { // what stands in the send ring is all 0, but for its word
		m.r.SendWord(n).Store(uint64(MakeWord(KindEach, 100, 1)))
	}
	for name, x := range map[string]struct {
		do   func(h *Host, m *mate)
		look func(h *Host) (bool, error)
		off  func(r *Region) uint64
	}{
		"the send ring": {
			func(h *Host, m *mate) { m.r.SendTail().Store(1) },
			func(h *Host) (bool, error) { return h.Next(new(Post)) },
			func(r *Region) uint64 { return r.SendOff },
		},
		"a flow": {
			func(h *Host, m *mate) { word(m, 0); touch(m, m.r.SendArenaOff); m.r.SendTail().Store(1) },
			func(h *Host) (bool, error) { return h.Next(new(Post)) },
			func(r *Region) uint64 { return r.FlowOff },
		},
		"a body": {
			func(h *Host, m *mate) { word(m, 0); touch(m, m.r.FlowOff); m.r.SendTail().Store(1) },
			func(h *Host) (bool, error) { return h.Next(new(Post)) },
			func(r *Region) uint64 { return r.SendArenaOff },
		},
		"the release ring": {
			func(h *Host, m *mate) { m.r.ReleaseTail().Store(1) },
			func(h *Host) (bool, error) {
				_, _, _, err := h.Releases()
				return h.relHead == 1 && err == nil, err
			},
			func(r *Region) uint64 { return r.ReleaseOff },
		},
	} {
		for _, written := range []bool{false, true} {
			if written && name == "the send ring" {
				continue // of zeros: no descriptor
			}
			h, m := untouched(t, testSpec())
			if name == "the release ring" && written { // what it gives back is out
				off, _, _ := h.Reserve(64)
				h.Place(testDst, off, wire.One(make([]byte, 64)), NoLane, 0)
				h.Publish()
				if off != 0 {
					t.Fatal(off)
				}
			}
			x.do(h, m)
			before := allocated(t, h.r.FD)
			if ok, err := x.look(h); ok || err != nil {
				t.Fatalf("%s: %v %v", name, ok, err)
			}
			if h.HasPosts() || h.HasReleases() {
				t.Errorf("%s: a reactor would look again and again", name)
			}
			off, n, wanted := h.Unsure()
			if !wanted || off != x.off(h.r)&^(pageBytes-1) || n != pageBytes || !h.Finding() {
				t.Errorf("%s: unsure of %d bytes at %d: %v", name, n, off, wanted)
			}
			found := h.r.Written(off, n)
			if _, _, again := h.Unsure(); again || found {
				t.Errorf("%s: asked twice, or somebody has touched it", name)
			}
			h.Sure(written)
			if lo := off >> pageShift; h.known.has(lo) != written || h.known.has(lo+1) {
				t.Errorf("%s, written: %v: page %d is known: %v, the next one: %v", name, written, lo, h.known.has(lo), h.known.has(lo+1))
			}
			if !h.Due() || !h.HasPosts() && !h.HasReleases() {
				t.Errorf("%s, written: %v: the reactor does not look again", name, written)
			}
			ok, err := x.look(h)
			if ok != written || errors.Is(err, unix.EBADMSG) == written || h.Finding() {
				t.Errorf("%s, written: %v: %v %v", name, written, ok, err)
			}
			if n := allocated(t, h.r.FD); !written && n != before {
				t.Errorf("%s: the daemon has touched %d bytes for its client", name, n-before)
			}
		}
	}
}

// TestWritten: what the client has touched, by reading or writing, is there; the first
// page that it has not is found.
func TestWritten(t *testing.T) {
	h, m := untouched(t, testSpec())
	at := h.r.SendArenaOff
	for i := range uint64(3) {
		m.r.word64(at + i*pageBytes).Load()
	}
	for _, x := range []struct {
		pages uint64
		want  bool
	}{{1, true}, {3, true}, {4, false}} {
		if got := h.r.Written(at, x.pages*pageBytes); got != x.want || h.r.resident(at, x.pages*pageBytes) != x.want {
			t.Errorf("%d pages, of which 3 are there", x.pages)
		}
	}
	before := allocated(t, h.r.FD)
	if h.r.Written(at, 4*pageBytes); allocated(t, h.r.FD) != before {
		t.Error("looking has made a page")
	}
	h.r.Close()
	if h.r.Written(at, pageBytes) {
		t.Error("of a region that is closed")
	}
}

// TestWrittenOfSwappedOut: what the client has touched is found where it was swapped out, too.
func TestWrittenOfSwappedOut(t *testing.T) {
	if !Swaps() {
		t.Skip("elsewhere: this system has no swap")
	}
	h, m := untouched(t, testSpec())
	at, n := h.r.SendArenaOff, 64*pageBytes
	for i := uint64(0); i < n; i += pageBytes {
		m.r.word64(at + i).Store(i + 1)
	}
	for try := 0; h.r.resident(at, n); try++ {
		if try == 100 {
			t.Skip("the kernel swaps nothing out")
		}
		if err := unix.Madvise(m.r.mem[at:at+n], unix.MADV_PAGEOUT); err != nil {
			t.Skip(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	found := h.r.Written(at, n)
	for try := 0; !found && try < 100; try++ {
		time.Sleep(10 * time.Millisecond)
		found = h.r.Written(at, n)
	}
	if !found {
		t.Error("it was not found")
	}
	if h.r.Written(at, n+pageBytes) {
		t.Error("the page behind it was found")
	}
}

// TestUsed: what a region takes is told as far as the daemon has seen: what it has looked at of
// the client's part, and what it has paid for of its own.
func TestUsed(t *testing.T) {
	h, m := untouched(t, testSpec())
	used := func(want uint64, what string) {
		t.Helper()
		if got := h.Used(); got != want*pageBytes {
			t.Errorf("%s: %d bytes are in use, want %d pages", what, got, want)
		}
	}
	used(0, "at first")
	h.Pay(&purse{left: 1 << 30})
	if _, ok := h.PlaceCopy(testDst, wire.One([]byte{1}), NoLane, 0); !ok {
		t.Fatal("no room")
	}
	h.Publish()
	used(2, "an entry of the receive ring and a body")
	m.r.word64(m.r.ReleaseOff).Load()
	m.r.RecvHead().Store(1)
	m.r.PutRelease(0, 0)
	m.r.ReleaseTail().Store(1)
	if _, _, n, err := h.Releases(); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	used(3, "a page of the release ring")
	spareAll(t, h)
	used(uint64(h.Paid())/pageBytes+1, "after a look for what can be given back")
}

// TestLargestBodyIsLookedAt: one of 1 MiB that begins in the middle of a page, whose pages are known
// from then on.
func TestLargestBodyIsLookedAt(t *testing.T) {
	h, m := untouched(t, testSpec())
	flow(m)
	for at := uint64(0); at <= MaxDatagram; at += pageBytes {
		m.r.word64(m.r.SendArenaOff + at).Load()
	}
	m.post(MakeWord(KindEach, MaxDatagram, 1), SendDesc{Slot: 64, Gen: 1}, nil)
	if p := next(t, h); len(p.Body) != MaxDatagram {
		t.Errorf("%d bytes", len(p.Body))
	}
	first := h.r.SendArenaOff >> pageShift
	if n := h.known.missing(first, first+MaxDatagram>>pageShift); n != 0 {
		t.Errorf("%d of its pages would be asked for again", n)
	}
}

// TestRingPagesAreGivenBack: of the receive ring those that the client has read.
func TestRingPagesAreGivenBack(t *testing.T) {
	h, m := untouched(t, testSpec())
	h.Pay(&purse{left: 1 << 30})
	entries := 3*(pageMask+1) + 5
	for n := range entries {
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte{byte(n)}), NoLane, 0); !ok {
			t.Fatal("no room")
		}
		h.Publish()
	}
	in := func() int { // pages of the ring
		lo := (h.r.RecvOff - h.r.DaemonOff) >> pageShift
		return 4 - h.mine.missing(lo, lo+3)
	}
	if spareAll(t, h); in() != 4 {
		t.Fatalf("%d pages of the ring with everything unread", in())
	}
	m.r.RecvHead().Store(2*(pageMask+1) + 1)
	if spareAll(t, h); in() != 2 {
		t.Errorf("%d pages of the ring, two have unread entries", in())
	}
	m.r.RecvHead().Store(entries + 1) // a lie is not believed
	if spareAll(t, h); in() != 2 {
		t.Errorf("%d pages of the ring after a lie", in())
	}
	m.r.RecvHead().Store(entries)
	if spareAll(t, h); in() != 1 {
		t.Errorf("%d pages of the ring with everything read", in())
	}
}

// purse pays until it is empty.
type purse struct {
	left, taken, given int
	kept               int  // of accounts
	bare               bool // there is nothing for accounts
}

func (p *purse) Take(n int) bool {
	if n > p.left {
		return false
	}
	p.left -= n
	p.taken += n
	return true
}

func (p *purse) Give(n int) { p.left, p.given = p.left+n, p.given+n }

func (p *purse) Keep(n int) bool {
	if n > 0 && p.bare {
		return false
	}
	p.kept += n
	return true
}

// TestPagesArePaid: a page of the daemon's part has memory when it was paid for, and not
// before; what cannot be paid for finds no room, and goes on when it can.
func TestPagesArePaid(t *testing.T) {
	h, m := untouched(t, testSpec())
	p := &purse{left: int(pageBytes) * 20}
	h.Pay(p)
	exact := func(when string) {
		t.Helper()
		if n := allocated(t, h.r.ownFD); n > h.Paid() || h.Paid() != p.taken-p.given {
			t.Fatalf("%s: %d bytes have memory, %d are paid for of %d taken", when, n, h.Paid(), p.taken-p.given)
		}
	}
	body := bytes.Repeat([]byte{7}, int(pageBytes))
	placed := 0
	for ; placed < 100; placed++ {
		if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); !ok {
			break
		}
		exact("placing")
	}
	if placed < 15 || placed > 19 || !h.Lacks() || h.Lacks() {
		t.Fatalf("%d pages of 20 were placed", placed)
	}
	h.Publish()
	if n := allocated(t, h.r.ownFD); n != h.Paid() {
		t.Errorf("%d bytes have memory, %d are paid for", n, h.Paid())
	}
	// Events wait as if their ring were full, none is lost.
	flow(m)
	p.left = 0
	m.send(0, 1, "x")
	id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
	h.Outcome(id, 10, 1, Delivered, 0, true)
	h.Publish()
	if h.r.EventTail().Load() != 0 || !h.Lacks() {
		t.Fatal("an event on a page that nobody paid for")
	}
	p.left = int(pageBytes)
	h.MemoryAgain()
	h.Publish()
	if h.r.EventTail().Load() != 1 || h.Lacks() {
		t.Fatal("an event is lost")
	}
	if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); ok || !h.Lacks() {
		t.Error("placed without a page")
	}
	if h.view.Load()&viewArena == 0 || h.r.RoomWanted().Load() != 0 {
		t.Error("nobody was told yet")
	}
	if h.Publish(); h.r.RoomWanted().Load() == 0 {
		t.Error("the client is not told that room is lacked")
	}
	p.left = int(pageBytes)
	if h.MemoryAgain(); h.view.Load()&viewArena != 0 {
		t.Error("still lacking")
	}
	if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); !ok {
		t.Error("no room although it could be paid")
	}
	exact("at the end")
}

func flow(m *mate) { m.flow(0, 1, testDst) }

// spareAll gives everything back that can be, and tells how many bytes.
func spareAll(t testing.TB, h *Host) (n int) {
	t.Helper()
	at, paid := uint64(0), h.Paid()
	for {
		s, ok := h.Spare(&at)
		if !ok {
			return paid - h.Paid()
		}
		if s.n > spareMost {
			t.Fatalf("%d bytes in one step", s.n)
		}
		if err := h.r.Remove(s); err != nil {
			t.Fatal(err)
		}
		h.Restore(s)
	}
}

// TestPagesAreGivenBack: what is free is given back, to the last page; what is in
// use, or about to be written, stays.
func TestPagesAreGivenBack(t *testing.T) {
	h, m := untouched(t, testSpec())
	p := &purse{left: 1 << 30}
	h.Pay(p)
	body := bytes.Repeat([]byte{7}, 100<<10)
	for range 20 {
		if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); !ok {
			t.Fatal("no room")
		}
	}
	h.Publish()
	if spareAll(t, h); h.Paid() < 20*len(body) {
		t.Fatalf("%d bytes stay of 20 bodies that nobody has read", h.Paid())
	}
	for n := range uint64(20) {
		var d RecvDesc
		m.r.GetRecv(n, &d)
		if !bytes.Equal(m.r.recvArena[d.Slot:][:len(body)], body) {
			t.Fatalf("body %d is lost", n)
		}
		m.r.PutRelease(n, d.Slot)
	}
	m.r.RecvHead().Store(20)
	m.r.ReleaseTail().Store(20)
	for h.HasReleases() {
		if _, _, _, err := h.Releases(); err != nil {
			t.Fatal(err)
		}
	}
	spareAll(t, h)
	// The page that the next descriptor goes to is written without another look.
	if got := allocated(t, h.r.ownFD); got != int(pageBytes) || h.Paid() != got || p.taken-p.given != got {
		t.Errorf("%d bytes have memory, %d are paid for", got, h.Paid())
	}
	if _, ok := h.PlaceCopy(testDst, wire.One(body), NoLane, 0); !ok {
		t.Error("no room afterwards")
	}
}

// TestGoingPages: while pages are being given back they are not used, and whoever
// needs them hears that it lacks something.
func TestGoingPages(t *testing.T) {
	s := testSpec()
	s.RecvArena = 64 << 10
	h, m := untouched(t, s)
	p := &purse{left: 1 << 30}
	h.Pay(p)
	off, _, ok := h.Reserve(64 << 10)
	if !ok {
		t.Fatal("no room")
	}
	h.Unreserve(off)
	at := uint64(0)
	got, ok := h.Spare(&at)
	if !ok || got.n != 64<<10 || got.block != off {
		t.Fatalf("%+v %v", got, ok)
	}
	if _, _, ok := h.Reserve(1); ok {
		t.Error("a block that is being given back was handed out")
	}
	m.r.PutRelease(0, got.block)
	m.r.ReleaseTail().Store(1)
	if _, _, _, err := h.Releases(); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a client released it: %v", err)
	}
	h, _ = untouched(t, s) // that one was thrown out
	h.Pay(p)
	at = 0
	off, _, _ = h.Reserve(64 << 10)
	h.Unreserve(off)
	got, _ = h.Spare(&at)
	h.Restore(got)
	if h.Paid() != 0 {
		t.Errorf("%d bytes are paid for", h.Paid())
	}
	if _, _, ok := h.Reserve(64 << 10); !ok {
		t.Error("what was given back is not free")
	}

	h, m = untouched(t, testSpec())
	h.Pay(p)
	for range h.r.Events / 2 {
		h.Freed(1)
		h.Publish()
		m.r.EventHead().Store(h.eventPub)
	}
	at = 0
	if got, ok = h.Spare(&at); !ok || got.block != noBlock {
		t.Fatalf("%+v %v", got, ok)
	}
	if _, ok := h.Spare(&at); ok {
		t.Error("two ranges of rings at once")
	}
	for range h.r.Events { // once around
		h.Freed(1)
		h.Publish()
		m.r.EventHead().Store(h.eventPub)
	}
	if !h.Lacks() || h.overflow.n == 0 {
		t.Error("an event on a page that is being taken away")
	}
	h.r.Remove(got)
	h.Restore(got)
	h.MemoryAgain()
	if h.Publish(); h.overflow.n != 0 {
		t.Error("an event stays behind")
	}
}

// TestPaidOff: when nobody has the daemon's part any more all is given back, once, whatever was
// being given back meanwhile.
func TestPaidOff(t *testing.T) {
	h, _ := untouched(t, testSpec())
	h.PaidOff() // nobody pays
	p := &purse{left: 1 << 30}
	h.Pay(p)
	off, _, _ := h.Reserve(64 << 10)
	h.Unreserve(off)
	at := uint64(0)
	s, ok := h.Spare(&at)
	if !ok {
		t.Fatal("nothing can be given back")
	}
	h.PaidOff()
	if p.taken == 0 || p.given != p.taken || h.Paid() != 0 {
		t.Errorf("%d of %d bytes were given back", p.given, p.taken)
	}
	if n := h.Restore(s); n != 0 || p.given != p.taken {
		t.Errorf("%d bytes were given back twice", n)
	}
	h.PaidOff()
	if p.given != p.taken {
		t.Error("given back twice")
	}
}

// TestPageSet: against a map.
func TestPageSet(t *testing.T) {
	rnd := rand.New(rand.NewSource(7))
	var s pageSet
	is := map[uint64]bool{}
	for step := range 20000 {
		lo := uint64(rnd.Intn(300))
		hi := lo + uint64(rnd.Intn(1+rnd.Intn(130)))
		have := 0
		for i := lo; i <= hi; i++ {
			if is[i] {
				have++
			}
		}
		switch rnd.Intn(4) {
		case 0:
			s.add(lo, hi)
			for i := lo; i <= hi; i++ {
				is[i] = true
			}
		case 1:
			if n := s.remove(lo, hi); n != have {
				t.Fatalf("step %d: %d were removed of %d to %d, not %d", step, n, lo, hi, have)
			}
			for i := lo; i <= hi; i++ {
				delete(is, i)
			}
		case 2:
			if n := s.missing(lo, hi); n != int(hi-lo)+1-have {
				t.Fatalf("step %d: %d are missing of %d to %d, not %d", step, n, lo, hi, int(hi-lo)+1-have)
			}
		case 3:
			want, found := lo, false
			for ; want < hi && !found; want++ {
				found = is[want]
			}
			if got, ok := s.next(lo, hi); ok != found || ok && got != want-1 {
				t.Fatalf("step %d: the next from %d below %d is %d %v, not %d %v", step, lo, hi, got, ok, want-1, found)
			}
		}
	}
}

// TestLivePages: of a ring of four pages those stay that hold an entry between head and
// tail, and the one whose middle tail is in.
func TestLivePages(t *testing.T) {
	per := pageMask + 1
	for _, x := range []struct {
		head, tail uint64
		live       string
	}{
		{0, 0, "...."}, {0, 1, "#..."}, {1, 1, "#..."}, {0, per, "#..."}, {per, per, "...."}, {per - 1, per, "#..."}, {per - 1, per + 1, "##.."},
		{0, 4 * per, "####"}, {1, 4*per + 1, "####"}, {3 * per, 4*per + 1, "#..#"}, {4*per - 1, 4 * per, "...#"}, {4 * per, 4 * per, "...."},
		{7 * per, 9*per - 1, "#..#"}, {1<<40*per + 5, 1<<40*per + 6, "#..."},
	} {
		got := ""
		for i := range uint64(4) {
			if new(Host).live(i, 4*per, x.head, x.tail) {
				got += "#"
			} else {
				got += "."
			}
		}
		if got != x.live {
			t.Errorf("head %d, tail %d: %s, not %s", x.head, x.tail, got, x.live)
		}
	}
	if !new(Host).live(0, per/2, 0, 0) {
		t.Error("a ring that is smaller than a page is given back")
	}
}
