package shm

import "testing"

// Datagrams are appended until the block is full, to the last byte; the one that has no
// room any more goes into a block of its own, and that one is larger, for the daemon has
// not come yet.
func TestAppendFillsTheBlock(t *testing.T) {
	const each, fit = 4 * UnitBytes, 4
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	sl, err := s.Grab(f, each*fit)
	if err != nil {
		t.Fatal(err)
	}
	s.Post(&sl, KindEach, each, 1, each, 1, false)
	for tag := uint64(2); tag <= fit; tag++ {
		if !s.Append(f, make([]byte, each), tag) {
			t.Fatalf("datagram %d of %d was not appended", tag, fit)
		}
	}
	before := s.Block(each)
	if s.Append(f, make([]byte, each), fit+1) {
		t.Error("a datagram was appended to a block that is full")
	}
	if after := s.Block(each); after <= before || after < 4*each*fit {
		t.Errorf("the next block has %d bytes and would have had %d before", after, before)
	}
	_, posts := takeAll(t, h)
	if len(posts) != 1 || posts[0].Count != fit || len(posts[0].Body) != each*fit {
		t.Errorf("the daemon finds %+v", posts)
	}
}

// Several are appended at once, as many as there is room for: in the block, and under way. The
// rest is for a descriptor of its own, with a larger block.
func TestAppendSeveral(t *testing.T) {
	const each = UnitBytes
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	sl, err := s.Grab(f, 16*each)
	if err != nil {
		t.Fatal(err)
	}
	s.Post(&sl, KindEach, 2*each, 2, 2*each, 1, false)
	for _, c := range []struct {
		what string
		f    *Flow
		each int
		tag  uint64
	}{
		{"another length", f, each - 1, 3}, {"a tag that was used", f, each, 2}, {"a later tag", f, each, 4},
	} {
		if _, fit := s.Behind(c.f, c.each, 1, c.tag); fit != 0 {
			t.Errorf("%s: %d may be appended", c.what, fit)
		}
	}
	body, fit := s.Behind(f, each, 5, 3)
	if fit != 5 || len(body) != 5*each || cap(body) != 5*each {
		t.Fatalf("%d fit in %d bytes, want 5 in %d", fit, len(body), 5*each)
	}
	for i := range body {
		body[i] = byte(i / each)
	}
	if !s.Appended(5) {
		t.Fatal("not appended, and nobody has claimed it")
	}
	before := s.Block(each)
	if _, fit := s.Behind(f, each, 12, 8); fit != 9 {
		t.Errorf("%d fit in the rest of the block, want 9", fit)
	}
	if s.Block(each) <= before {
		t.Error("the next block is not larger, though this was too small")
	}
	_, posts := takeAll(t, h)
	if len(posts) != 1 || posts[0].Count != 7 || len(posts[0].Body) != 7*each || posts[0].Body[2*each] != 0 || posts[0].Body[7*each-1] != 4 {
		t.Fatalf("the daemon finds %d datagrams in %d bytes", posts[0].Count, len(posts[0].Body))
	}
	if s.Appended(9) {
		t.Error("appended to a descriptor that was claimed")
	}
	if _, fit := s.Behind(f, each, 1, 8); fit != 0 {
		t.Error("a claimed descriptor is still open")
	}
	if got := s.count; got != 7 {
		t.Errorf("%d datagrams are under way, want 7", got)
	}
}

// Where the daemon keeps up, blocks become smaller, if a quarter of one is more than was used.
func TestBlocksBecomeSmaller(t *testing.T) {
	for _, c := range []struct {
		block int
		want  int
	}{{4 * 300, 4 * 300}, {4*300 + 4, 2*300 + 2}, {5 * 300, 5 * 150}} {
		s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
		f := openFlow(t, s, h, clientDst)
		sl, err := s.Grab(f, 4096)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 300, 1, 300, 1, false)
		if _, fit := s.Behind(f, 300, 1, 2); fit != 1 {
			t.Fatalf("%d fit", fit)
		}
		if _, posts := takeAll(t, h); len(posts) != 1 {
			t.Fatalf("%d posts", len(posts))
		}
		s.block = c.block
		if s.Appended(1) || s.block != c.want {
			t.Errorf("of blocks of %d bytes 300 were used: now %d, want %d", c.block, s.block, c.want)
		}
	}
}

// No more are appended than a train may hold, be they empty.
func TestAppendNoMoreThanATrain(t *testing.T) {
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	sl, err := s.Grab(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Post(&sl, KindEach, 0, 1, 0, 1, false)
	if _, fit := s.Behind(f, 0, 2*MaxTrain, 2); fit != MaxTrain-1 {
		t.Fatalf("%d fit, want %d", fit, MaxTrain-1)
	}
	if !s.Appended(MaxTrain - 1) {
		t.Fatal("not appended")
	}
	if _, fit := s.Behind(f, 0, 1, MaxTrain+1); fit != 0 {
		t.Error("one more than a train holds")
	}
	if _, posts := takeAll(t, h); len(posts) != 1 || posts[0].Count != MaxTrain || posts[0].Bad != nil {
		t.Errorf("the daemon finds %+v", posts)
	}
}
