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
