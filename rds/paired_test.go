package rds

import (
	"testing"
)

// TestSetAside tells what a pair takes off the receive buffer: the port is congested when
// the queue has more than what is left, and clear again below half of it, or when it has it
// back.
func TestSetAside(t *testing.T) {
	w := newPair(t)
	e := w.a
	from := bindBox(t, e, 10, 1<<20, SocketOptions{})
	to := bindBox(t, e, 20, 1<<20, SocketOptions{RcvBufBytes: 1000})
	d := mustOpen(t, from.s, to.s.Addr(), nil)
	put := func(n int) {
		t.Helper()
		body := uniform(string(make([]byte, n)))
		if err := from.s.Post(w.now, d, body, 1, 1, Quiet, nil); err != nil {
			t.Fatal(err)
		}
	}
	if to.s.SetAside(w.now, 501) || !to.s.SetAside(w.now, 500) {
		t.Fatal("a pair may not have half of the buffer, or may have more")
	}
	if to.s.PairRoom() != 250 || to.s.SetAside(w.now, 251) {
		t.Error("the next one may have more than half of what is left")
	}
	put(400)
	if to.s.Info().Congested {
		t.Error("congested with 400 bytes queued of 500")
	}
	put(200)
	if !to.s.Info().Congested {
		t.Error("not congested with 600 bytes queued of 500")
	}
	to.read(w.now, 1)
	if to.s.Info().Congested { // 200 are less than half of 500
		t.Error("congested with 200 bytes queued of 500")
	}
	put(350)
	if to.read(w.now, 1); !to.s.Info().Congested {
		t.Error("clear with 350 bytes queued of 500")
	}
	if to.s.SetAside(w.now, -500); to.s.Info().Congested {
		t.Error("congested with 350 bytes queued of 1000, when the pair is gone")
	}
	put(650)
	if to.s.SetAside(w.now, 100) {
		t.Error("a pair takes room in which datagrams are queued")
	}
	e.holds(t)
}

// TestPairedFigures counts what passes a pair like what passes the engine (D3).
func TestPairedFigures(t *testing.T) {
	w := newPair(t)
	e := w.a
	from := bindBox(t, e, 10, 1<<20, SocketOptions{})
	to := bindBox(t, e, 20, 1<<20, SocketOptions{})
	from.s.PairedSent(5, 50)
	to.s.SetPaired(PairedUnread{Datagrams: 5, Bytes: 50})
	if i := to.s.Info(); i.RecvN != 5 || i.RecvQueued != 50 {
		t.Errorf("%+v, with 5 datagrams of 50 bytes in a pair", i)
	}
	to.s.PairedRead(3, 30)
	to.s.PairedDropped(2)
	to.s.SetPaired(PairedUnread{})
	a, b, c := from.s.Info().Stats, to.s.Info().Stats, e.Counters()
	if c.SendQueued != 5 || c.CopyFromUser != 50 || c.RecvQueued != 5 || c.RecvBytesAdded != 50 || c.CopyToUser != 30 || c.RecvBytesFreed != 30 {
		t.Errorf("5 datagrams of 50 bytes, of which 3 of 30 were read: %+v", c)
	}
	if a.Accepted != 5 || a.Delivered != 5 || b.Received != 3 || b.ReceivedBytes != 30 || c.RecvDelivered != 3 || c.RecvDropDeadSock != 2 || c.OutcomeDelivered != 5 {
		t.Errorf("5 datagrams, of which 3 were read: %+v, %+v, %+v", a, b, c)
	}
	e.holds(t)
}
