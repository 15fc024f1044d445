package shm

import (
	"bytes"
	"math/rand"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// datagramsOf is what a post holds.
func datagramsOf(p Post) (ds []string) {
	for c := p.Cut(); c.Left() > 0; {
		d, _ := c.Next()
		ds = append(ds, string(d))
	}
	return ds
}

// mixedPair is a client and a daemon, and a slot with room for so many bytes and lengths.
func mixedPair(t *testing.T, body, lengths int) (*Sender, *Host, *Flow, Slot) {
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	sl, err := s.GrabFor(f, Want{Body: body, Table: LengthBytes * lengths})
	if err != nil {
		t.Fatal(err)
	}
	return s, h, f, sl
}

// Datagrams of any length are appended: to one of one length, which becomes mixed by it, and one by one
// or several at once.
func TestMixedAppend(t *testing.T) {
	s, h, f, sl := mixedPair(t, 1000, 16)
	body := copy(sl.Body, "aabb")
	s.Post(&sl, KindEach, body, 2, body, 1, false)
	if !s.Append(f, []byte("cc"), 3) || !s.Append(f, []byte("d"), 4) || !s.Append(f, nil, 5) || !s.Append(f, []byte("ee"), 6) {
		t.Fatal("a datagram was not appended")
	}
	if !s.Mix(f, 3, 7) || !s.Add([]byte("fff")) || !s.Add([]byte("g")) || s.Added() != 2 {
		t.Fatal("two were not appended")
	}
	if s.Append(f, []byte("h"), 8) || s.Append(f, []byte("h"), 10) {
		t.Error("a datagram whose tag does not follow was appended")
	}
	if got, want := s.Room(), 1<<20-len("aabbccdeefffg"); got != want {
		t.Errorf("room for %d bytes, want %d", got, want)
	}
	ids, posts := takeAll(t, h)
	if len(posts) != 1 || posts[0].Tag != 1 || !slices.Equal(datagramsOf(posts[0]), []string{"aa", "bb", "cc", "d", "", "ee", "fff", "g"}) {
		t.Fatalf("the daemon takes %d posts, the first %q", len(posts), datagramsOf(posts[0]))
	}
	if s.Append(f, []byte("late"), 9) {
		t.Error("a datagram was appended to what is claimed")
	}
	// The outcomes come in two events, and the room with the last.
	var v Event
	h.Outcome(ids[0], 1, 3, Delivered, 0, false)
	h.Publish()
	h.Outcome(ids[0], 4, 5, Delivered, 0, true)
	h.Publish()
	for range 2 {
		if ok, err := s.NextEvent(&v); !ok || err != nil {
			t.Fatal(err)
		}
	}
	if s.Room() != 1<<20 || s.Out() != 0 || s.Most() != MaxTrain || s.arena.Used() != 0 {
		t.Errorf("room %d, %d out, %d more datagrams, %d bytes of the arena used", s.Room(), s.Out(), s.Most(), s.arena.Used())
	}
}

// What there is no room for is not appended: behind the payloads, in the table, in a train.
func TestMixedLimits(t *testing.T) {
	for what, c := range map[string]struct {
		body, lengths int // of the slot
		posted        int // bytes of the first
		sizes         []int
	}{
		"the slot is full":             {64, 16, 10, []int{50, 4}},
		"the slot is full, 0 bytes":    {64, 16, 10, []int{54, 0, 0}},
		"the table is full":            {4096, 16, 9, slices.Repeat([]int{1}, 15)},
		"the train is full":            {MaxTrainBytes, 16, 10, []int{MaxTrainBytes - 4*3 - 10 - 1, 1}},
		"with the table it is too far": {MaxTrainBytes, 16, 10, []int{MaxTrainBytes - 4*2 - 10}},
		"too many datagrams":           {MaxTrainBytes, MaxTrain + 16, 1, slices.Repeat([]int{0}, MaxTrain-1)},
	} {
		s, h, f, sl := mixedPair(t, c.body, c.lengths)
		s.Post(&sl, KindEach, c.posted, 1, c.posted, 1, false)
		for i, n := range c.sizes {
			if !s.Append(f, make([]byte, n), uint64(2+i)) {
				t.Fatalf("%s: datagram %d of %d bytes has no room", what, i, n)
			}
		}
		for range 2 { // nor at the second try
			if s.Append(f, make([]byte, 1), uint64(2+len(c.sizes))) {
				t.Errorf("%s: one more was appended", what)
			}
		}
		_, posts := takeAll(t, h)
		if len(posts) != 1 || posts[0].Count != 1+len(c.sizes) || posts[0].Bad != nil || len(posts[0].Body) > MaxTrainBytes {
			t.Fatalf("%s: the daemon takes %d posts, the first of %d datagrams in %d bytes: %v", what, len(posts), posts[0].Count, len(posts[0].Body), posts[0].Bad)
		}
		got := make([]int, 0, posts[0].Count)
		for _, d := range datagramsOf(posts[0]) {
			got = append(got, len(d))
		}
		if !slices.Equal(got, append([]int{c.posted}, c.sizes...)) {
			t.Errorf("%s: lengths %v", what, got)
		}
	}
}

// A daemon that does not say that it knows mixed trains is not sent any.
func TestMixedUnknown(t *testing.T) {
	s, h, f, sl := mixedPair(t, 1000, 16)
	s.r.Takes = 0
	s.Post(&sl, KindEach, 4, 1, 4, 1, false)
	if s.Append(f, []byte("other"), 2) || s.Mix(f, 5, 2) || s.Plan(Want{Body: 9}).Table != 0 {
		t.Error("a mixed train for a daemon that does not take any")
	}
	if !s.Append(f, []byte("same"), 2) {
		t.Error("nor is one of the same length appended")
	}
	if _, posts := takeAll(t, h); len(posts) != 1 || posts[0].Table || posts[0].Count != 2 {
		t.Errorf("the daemon takes %+v", posts)
	}
}

// Slots get room for a table when lengths differ while the daemon does not come, and none any more when
// they have not for a while.
func TestMixedRoomIsLearnt(t *testing.T) {
	s, _, h := clientPair(t, Spec{Sends: 64, Events: 64, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	tag := uint64(0)
	send := func(n int) (appended bool) {
		tag++
		if s.Append(f, make([]byte, n), tag) {
			return true
		}
		sl, err := s.GrabFor(f, s.Plan(Want{Body: n}))
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, n, 1, n, tag, false)
		return false
	}
	if s.Plan(Want{Body: 64}).Table != 0 {
		t.Error("a table before any length differed")
	}
	if send(64) || send(65) || !send(66) || !send(1) || !send(66) {
		t.Error("lengths that differ are not appended from the third on")
	}
	for range 2 * mixesLast {
		takeAll(t, h)
		if send(64) {
			t.Fatal("appended to what is claimed")
		}
		if !send(64) {
			t.Fatal("one of the same length is not appended")
		}
	}
	if got := s.Plan(Want{Body: 64}).Table; got != 0 {
		t.Errorf("a table of %d bytes though lengths have not differed for long", got)
	}
}

// What a hostile client may write into a mixed descriptor: what points outside ends its socket, what cannot
// be sent is refused, and lengths are its own affair.
func TestMixedHostile(t *testing.T) {
	for what, c := range map[string]struct {
		w       Word
		slot    uint64
		hostile bool
		errno   int // of a refusal
	}{
		"good":                                 {MakeWord(KindMixed, 100, 16), 64, false, 0},
		"a table before the arena":             {MakeWord(KindMixed, 100, 17), 64, true, 0},
		"a table before an arena, no slot":     {MakeWord(KindMixed, 0, 1), 0, true, 0},
		"no datagrams":                         {MakeWord(KindMixed, 100, 0), 64, true, 0},
		"too many":                             {MakeWord(KindMixed, 100, MaxTrain+1), 1 << 15, true, 0},
		"payloads behind the arena":            {MakeWord(KindMixed, 65, 1), 1<<17 - 64, true, 0},
		"a slot between units":                 {MakeWord(KindMixed, 1, 1), 65, true, 0},
		"with its table too large for a train": {MakeWord(KindMixed, MaxTrainBytes-7, 2), 64, false, int(unix.EMSGSIZE)},
		"unknown bits":                         {MakeWord(KindMixed, 100, 16) | 1<<50, 64, false, int(unix.EINVAL)},
		"a kind behind it":                     {MakeWord(KindMixed+1, 100, 1), 64, true, 0},
	} {
		spec := smallSpec()
		spec.SendArena = 1 << 17
		h, m := newPair(t, spec, nil)
		m.post(c.w, SendDesc{Tag: 1, Slot: c.slot}, nil)
		var p Post
		ok, err := h.Next(&p)
		switch {
		case c.hostile && rdserr.Errno(err) != unix.EBADMSG:
			t.Errorf("%s: %v, %v", what, ok, err)
		case !c.hostile && (!ok || err != nil || rdserr.Errno(p.Bad) != unix.Errno(c.errno)):
			t.Errorf("%s: %v, %v, %v", what, ok, err, p.Bad)
		}
	}
}

// The client appends datagrams of many lengths while the daemon claims, in memory that the race detector
// watches: each comes once, whole and in order.
func TestMixedRace(t *testing.T) {
	total := 200_000
	if testing.Short() {
		total = 20_000
	}
	spec := smallSpec()
	spec.Sends, spec.Events, spec.SendArena, spec.SndBuf = 16, 16, 1<<18, 1<<17
	r := heapRegion(t, spec)
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	s := NewSender(r, bell)
	ended := make(chan struct{})
	datagram := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i*7919%97) }
	mixed := 0
	go func() {
		defer close(ended)
		h := NewHost(r, nil)
		rnd := rand.New(rand.NewSource(1))
		for got := 0; got < total && !t.Failed(); {
			var p Post
			ok, err := h.Next(&p)
			if err != nil {
				t.Error(err)
				return
			}
			if !ok {
				h.Publish()
				runtime.Gosched()
				continue
			}
			if p.Open {
				h.Taken(&p, MakeTarget(testDst), false)
				h.SetFlow(p.Flow, p.Gen, FlowClear, 0)
				continue
			}
			if p.Reversed {
				mixed++
			}
			id, _ := h.Taken(&p, MakeTarget(testDst), true)
			for _, d := range datagramsOf(p) {
				if d != string(datagram(got)) {
					t.Errorf("datagram %d is %d bytes: %x", got, len(d), d)
					return
				}
				got++
			}
			h.Outcome(id, p.Tag, p.Count, Delivered, 0, true)
			for range rnd.Intn(20) {
				runtime.Gosched()
			}
		}
		h.Publish()
	}()
	f, err := s.Flow(testDst)
	if err != nil {
		t.Fatal(err)
	}
	var v Event
	for i := 0; i < total && !t.Failed(); {
		for ok := true; ok; {
			if ok, err = s.NextEvent(&v); err != nil {
				t.Fatal(err)
			}
		}
		s.EventsTaken()
		d, tag := datagram(i), uint64(i+1)
		if s.Room() > 0 && s.Append(f, d, tag) {
			i++
			continue
		}
		sl, err := s.GrabFor(f, s.Plan(Want{Body: len(d)}))
		if err != nil || s.Room() <= 0 {
			if err == nil {
				s.Drop(&sl)
			}
			runtime.Gosched()
			continue
		}
		copy(sl.Body, d)
		s.Post(&sl, KindEach, len(d), 1, len(d), tag, false)
		i++
	}
	if <-ended; mixed == 0 {
		t.Error("nothing was appended")
	}
}
