package transport

import "testing"

// TestSentIsTold holds that what was written is told before the next event, and that what was
// not written when a turn told events is asked for by whoever writes it, once.
func TestSentIsTold(t *testing.T) {
	var c SentCount
	h := &tagLog{}
	r := NewTagReader(NewRegions([32]byte{9}), 1, &c)
	r.Start(h)
	seq := uint32(0)
	event := func() {
		t.Helper()
		seq++
		b := make([]byte, TagLen)
		(&Tag{Kind: OpSend, Seq: seq}).Put(b)
		if err := r.Feed(b); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, sent int) {
		t.Helper()
		if h.sent != sent {
			t.Fatalf("%s: %d are sent, want %d", what, h.sent, sent)
		}
	}
	wrote := func(n int, tell bool) {
		t.Helper()
		if c.Wrote(n) != tell {
			t.Fatalf("whoever wrote %d is asked to have it told: %v, want %v", n, !tell, tell)
		}
	}
	for range 5 {
		c.Posted()
	}
	wrote(2, false) // nobody waits
	want("before any event", 0)
	event()
	want("with the event", 2)
	wrote(1, false)
	event() // in the same turn
	want("with the second event", 3)
	wrote(1, false)
	r.EndTurn()
	want("at the end of the turn", 4)
	wrote(1, true) // one was not written then
	want("before it is told", 4)
	r.TellSent()
	want("told", 5)
	c.Posted()
	wrote(1, false) // at the end of that turn nothing was left
	event()
	r.EndTurn()
	want("all", 6)
	c.Posted()
	event()
	r.EndTurn()
	wrote(1, true)
	c.Posted()
	wrote(1, false) // it was asked for once
	r.TellSent()
	want("both at once", 8)
}
