package shm

import (
	"context"
	"errors"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceivedAtTheEdges: a received descriptor is good up to the last byte of the arena, of its
// table and of a datagram.
func TestReceivedAtTheEdges(t *testing.T) {
	const arena = 1 << 22
	src := netip.MustParseAddrPort("10.0.0.2:1")
	for what, c := range map[string]struct {
		w    Word
		slot uint64
		good bool
	}{
		"nothing at the end":       {MakeWord(KindEach, 0, 1), arena, true},
		"nothing behind the end":   {MakeWord(KindEach, 0, 1), arena + UnitBytes, false},
		"up to the end":            {MakeWord(KindEach, UnitBytes, 1), arena - UnitBytes, true},
		"a byte beyond":            {MakeWord(KindEach, UnitBytes+1, 1), arena - UnitBytes, false},
		"a table and nothing":      {MakeWord(KindTable, 4*3, 3), 0, true},
		"a byte less":              {MakeWord(KindTable, 4*3-1, 3), 0, false},
		"a table and little":       {MakeWord(KindTable, 4*3+2, 3), 0, true},
		"the most datagrams":       {MakeWord(KindEach, 0, MaxTrain), 0, true},
		"one more":                 {MakeWord(KindEach, 0, MaxTrain+1), 0, false},
		"the largest":              {MakeWord(KindEach, MaxDatagram, 1), 0, true},
		"a byte larger":            {MakeWord(KindEach, MaxDatagram+1, 1), 0, false},
		"parts of the same length": {MakeWord(KindEach, 12, 4), 0, true},
		"parts of different ones":  {MakeWord(KindEach, 13, 4), 0, false},
	} {
		_, x, _ := clientPair(t, Spec{RecvArena: arena})
		d := RecvDesc{Src: src, Word: c.w, Slot: c.slot}
		d.put(x.r.recvEntry(0))
		x.r.RecvTail().Store(1)
		if ok, err := x.Peek(&d); ok != c.good || Bad(err) == c.good {
			t.Errorf("%s: %v %v", what, ok, err)
		}
	}
}

// TestImpossibleTail: a pair whose tail cannot be is given up at once, and its sender hears of that.
func TestImpossibleTail(t *testing.T) {
	const bytes = 1 << 16
	for _, tail := range []uint64{bytes + 8, 1 << 40, 4, 1, ^uint64(0) &^ pairClosed &^ 7} {
		e := newPaired(t, bytes)
		e.out.tail().Store(tail &^ pairClosed)
		if rec, ok := e.r.Peek(0); ok || !e.r.Over() {
			t.Errorf("tail %#x: %+v, over %v", tail, rec, e.r.Over())
		}
		if e.out.tail().Load()&pairClosed == 0 {
			t.Errorf("tail %#x: the sender is not told", tail)
		}
	}
}

// TestDetachLeavesOneDescriptor: a connection that a reactor takes over has one descriptor, as
// before, and closing it leaves none.
func TestDetachLeavesOneDescriptor(t *testing.T) {
	l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := openFDs(t)
	s, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.Detach()
	if err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t) - before; n != 1 {
		t.Errorf("%d descriptors of one connection", n)
	}
	if err := k.Close(); err != nil || k.Close() != nil {
		t.Error(err)
	}
	if n := openFDs(t) - before; n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// TestShortOfDescriptors has each thing that needs descriptors made while there are so and so many: it is
// made, or whoever wants it is told that there are none, and nothing stays open.
func TestShortOfDescriptors(t *testing.T) {
	made := func(close func(), err error) error {
		if err == nil {
			close()
		}
		return err
	}
	for what, make := range map[string]func() error{
		"a region": func() error {
			r, err := Create(smallSpec())
			return made(func() { r.Disown(); r.Close() }, err)
		},
		"a pair": func() error {
			p, err := CreatePair(7, MinPairBytes)
			return made(func() { p.Lent(); p.Close(); p.Disown() }, err)
		},
		"an alarm": func() error {
			a, ear, err := NewAlarm()
			return made(func() { closeAll([]int{ear}); a.Mute(); a.Close() }, err)
		},
		"a bell": func() error {
			fd, err := NewBell()
			return made(func() { closeAll([]int{fd}) }, err)
		},
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before, refused := openFDs(t), 0
		for most := uint64(1); ; most++ {
			var err error
			atMostDescriptors(t, most, func() { err = make() })
			if n := openFDs(t); n != before {
				t.Fatalf("%s with descriptors up to %d: %d are left open", what, most, n-before)
			}
			if err == nil {
				break
			}
			if refused++; !errors.Is(err, unix.EMFILE) {
				t.Errorf("%s with descriptors up to %d: %v", what, most, err)
			}
		}
		if refused == 0 {
			t.Errorf("%s is never short of descriptors", what)
		}
	}
}

// TestSwaps says what the system says.
func TestSwaps(t *testing.T) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "SwapTotal:" {
			if want := f[1] != "0"; Swaps() != want {
				t.Errorf("there is memory to swap out to: %v, want %v", Swaps(), want)
			}
			return
		}
	}
	t.Error("/proc/meminfo has no SwapTotal")
}

// TestLeavingPagesAlone: while pages are being given back no page of theirs is used, and every other
// one is, also right beside them.
func TestLeavingPagesAlone(t *testing.T) {
	h, _ := newPair(t, smallSpec(), nil)
	first := h.r.RecvArenaOff - h.r.DaemonOff
	h.leaving = span{first + 4*pageBytes, 2 * pageBytes}
	for i, free := range []bool{0: true, 3: true, 4: false, 5: false, 6: true, 7: true} {
		if i == 1 || i == 2 {
			continue
		}
		if ok := h.afford(h.r.DaemonOff+first+uint64(i)*pageBytes, pageBytes); ok != free || h.Lacks() == free {
			t.Errorf("page %d, where 4 and 5 are leaving, can be had: %v", i, ok)
		}
	}
	if h.afford(h.r.DaemonOff+first+2*pageBytes, 3*pageBytes) {
		t.Error("three pages can be had, of which the last is leaving")
	}
}

// TestSendRecordsRound: an entry of the send table comes back as it was put, of whatever order but
// 0, which is none.
func TestSendRecordsRound(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for i := range 200 {
		order := []uint64{0, 1, 2, 1 << 63, rng.Uint64()}[i%5]
		in := SendRecord{Cell: rng.Uint64(), Order: order, Slot: rng.Uint64() >> 32 * UnitBytes, Progress: rng.Uint32(), Word: Word(rng.Uint64()), Tag: rng.Uint64(),
			Cookie: rng.Uint32(), Dst: Target{rng.Uint64(), rng.Uint64(), rng.Uint64() >> 40}, Flags: uint8(rng.Uint32())}
		var e entry
		in.put(&e)
		var out SendRecord
		if ok := out.get(&e); ok != (order != 0) || out != in {
			t.Fatalf("%+v comes back as %+v, %v", in, out, ok)
		}
	}
}

// TestGenerationsAreOdd: however often an entry of the flow table is opened, its generation is odd and
// not what it was.
func TestGenerationsAreOdd(t *testing.T) {
	s, _, h := clientPair(t, Spec{Flows: 8})
	last := map[uint32]uint32{}
	for i := range 50 {
		f := openFlow(t, s, h, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 4000))
		if f.gen&1 == 0 || f.gen == last[f.index] {
			t.Errorf("entry %d, which had generation %d, has %d", f.index, last[f.index], f.gen)
		}
		last[f.index] = f.gen
		sl, err := s.Grab(f, 4)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 4, 1, 4, 1, false)
		ids, _ := takeAll(t, h)
		h.Outcome(ids[0], 1, 1, Delivered, 0, true)
		h.Publish()
		var v Event
		if ok, err := s.NextEvent(&v); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if len(last) == 50 {
		t.Error("no entry was used twice")
	}
}
