package ib

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// TestNothingAfterBadPost: nothing more is told to an owner that has posted what cannot be.
func TestNothingAfterBadPost(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	y.on = func(string) error {
		y.l.Post(&transport.Op{Kind: transport.OpSend, Tail: make([]byte, transport.MaxTail+1)})
		return nil
	}
	w.settled()
	busy := make(chan struct{})
	w.b.r.Do(func() { <-busy })
	x.post(send("a"), send("b"))
	w.until("Both are sent.", func() bool { return x.sends() == 2 })
	close(busy)
	if err := w.wantClosed(y); err == io.EOF {
		t.Errorf("closed with %v", err)
	}
	w.wantTold(y, `received "a" 0x0 false`)
}

// TestNoReasonIsUnexpected: a device that says no more than that a queue pair has ended.
func TestNoReasonIsUnexpected(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.locked(func() bool { x.qp().fail(nil); return true })
	w.a.r.Do(func() { x.l.Ended(nil) })
	if err := w.wantClosed(x); err != io.ErrUnexpectedEOF {
		t.Errorf("closed with %v", err)
	}
	w.wantClosed(y)
}

// TestNames: what is not known has a name too.
func TestNames(t *testing.T) {
	for what, want := range map[fmt.Stringer]string{
		OtherFailure: "failure of the device", OtherFailure + 1: "unknown (10)", RecvWriteImm: "receive of a write with immediate", RecvWriteImm + 1: "unknown (8)",
	} {
		if what.String() != want {
			t.Errorf("%q, want %q", what, want)
		}
	}
}

// TestPostBehindTheEnd: what is posted to a link that has ended takes nothing.
func TestPostBehindTheEnd(t *testing.T) {
	charged := 0
	w := newWorld(t, func(v *fakeVerbs) { v.info.MaxSends = 4 })
	w.pa.Charge = func(_ netip.Addr, n int) error { charged += n; return nil } // under the link's lock
	x, y := w.started()
	x.l.Close()
	w.wantClosed(x)
	w.wantClosed(y)
	for range 1000 {
		x.post(send("a"))
	}
	x.l.mu.Lock()
	defer x.l.mu.Unlock()
	if charged != 0 || x.l.out.late.first != nil {
		t.Errorf("%d bytes are charged for a link that has ended", charged)
	}
}

// TestEndsBehindHandingOver: a link ends also when its last completion has been taken before
// the thread that handed the work over has returned.
func TestEndsBehindHandingOver(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.settled()
	x.qp().after = func() {
		x.l.Close()
		w.until("The device has flushed everything.", func() bool {
			w.settled()
			return w.locked(func() bool { return x.qp().failed && x.qp().slots == 0 && x.qp().places == 0 })
		})
		w.settled()
	}
	x.post(send("a"))
	w.wantClosed(x)
	w.wantClosed(y)
}

// TestEndsWhileItIsDialled: a device may say that a connection has failed before Dial has returned, and so before its
// addresses are known.
func TestEndsWhileItIsDialled(t *testing.T) {
	w := newWorld(t, nil)
	w.a.dialled = func(q *fakeQP) {
		w.a.r.Do(func() { q.h.Ended(&StatusError{Status: OtherFailure, Op: Send}) })
		time.Sleep(10 * time.Millisecond) // and no channel, which the race detector would take for an order
	}
	x, y := w.started()
	if err := w.wantClosed(x); err == nil || !strings.Contains(err.Error(), "the connection with "+x.l.RemoteAddr().String()) {
		t.Errorf("closed with %v", err)
	}
	w.wantClosed(y)
}
