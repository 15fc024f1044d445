package shm

import "testing"

// TestFence: to what stands before a point nothing is appended, and it is taken with what it had; what is no
// descriptor of the ring, or is shown already, is left as it is.
func TestFence(t *testing.T) {
	s, _, h := clientPair(t, Spec{Sends: 8, Events: 8, SendArena: 1 << 18})
	f := openFlow(t, s, h, clientDst)
	post := func(tag uint64) {
		t.Helper()
		sl, err := s.Grab(f, 4*UnitBytes)
		if err != nil {
			t.Fatal(err)
		}
		s.Post(&sl, KindEach, 1, 1, 1, tag, false)
	}
	post(1)
	h.Fence(h.Taking())
	h.Fence(h.Taking() - 1)
	h.Fence(h.Posted() + uint64(h.r.Sends))
	if !s.Append(f, []byte{2}, 2) {
		t.Error("it is not appended to what stands before no point")
	}
	h.Fence(h.Posted())
	h.Fence(h.Posted()) // again
	if s.Append(f, []byte{3}, 3) {
		t.Error("it is appended to what stands before a point")
	}
	post(3)
	_, posts := takeAll(t, h)
	if len(posts) != 2 || posts[0].Count != 2 || posts[1].Count != 1 || posts[0].Bad != nil || posts[1].Bad != nil {
		t.Errorf("taken are %+v", posts)
	}
	post(4)
	var p Post
	if ok, err := h.Next(&p); !ok || err != nil {
		t.Fatal(ok, err)
	}
	h.Fence(h.Posted())
	if ok, err := h.Next(&p); !ok || err != nil || p.Tag != 4 || p.Word&uint64(WordClaimed) != 0 {
		t.Errorf("it shows %+v, %v, %v", p, ok, err)
	}
}
