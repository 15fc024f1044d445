package shm

import (
	"testing"
	"unsafe"
)

// TestGrowthIsWhatItTakes: what a Growth is said to take is what the tables for it are, however
// slowly the client reads its events.
func TestGrowthIsWhatItTakes(t *testing.T) {
	if n := unsafe.Sizeof(sendInfo{}); n != infoBytes {
		t.Errorf("an entry of the send table has %d bytes, want %d", n, infoBytes)
	}
	if n := unsafe.Sizeof(queued{}); n != queuedBytes {
		t.Errorf("an event that waits has %d bytes, want %d", n, queuedBytes)
	}
	s := smallSpec()
	s.Sends = 256
	h, m := newPair(t, s, newLedger(t, LedgerSpec{Lanes: 1, Regions: 1}))
	m.flow(0, 1, testDst)
	tag := uint64(1)
	post := func() {
		m.post(MakeWord(KindEach, 8, 1), SendDesc{Tag: tag, Gen: 1}, nil)
		id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
		h.Outcome(id, tag, 1, Delivered, 0, true)
		tag += 2 // events that do not join
	}
	check := func() {
		t.Helper()
		n := h.Entries()
		if cap(h.sends.info) > n || cap(h.touched) > n || cap(h.overflow.q) > n*3/2 {
			t.Fatalf("for %d descriptors %d entries, %d touched, %d events that wait", n, cap(h.sends.info), cap(h.touched), cap(h.overflow.q))
		}
	}
	for h.Outstanding() < h.Entries()-1 { // next has it grow
		post()
		h.Publish()
		check()
	}
	for range 20000 { // one is read, and one comes
		m.r.EventHead().Add(1)
		h.Publish()
		if h.Outstanding() < h.Entries()-1 {
			post()
		}
		check()
	}
	if h.overflow.n < h.Entries()/2 {
		t.Errorf("no more than %d events wait", h.overflow.n)
	}
}
