package ib

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

func send(s string) transport.Op { return transport.Op{Kind: transport.OpSend, Data: []byte(s)} }

// TestOneDoorbell: what was posted is handed over in one call, and its last work request alone
// asks for a completion, which counts for all of them.
func TestOneDoorbell(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.hold(x, true)
	for i := range 10 {
		op := send(fmt.Sprint(i))
		x.l.Post(&op)
	}
	w.settled()
	if w.locked(func() bool { return w.a.posts != 0 }) {
		t.Error("work was handed over before Flush")
	}
	x.l.Flush()
	x.l.Flush()
	w.locked(func() bool {
		if w.a.posts != 1 || len(x.qp().sq) != 10 {
			t.Errorf("%d doorbells for %d work requests", w.a.posts, len(x.qp().sq))
		}
		for i, wr := range x.qp().sq {
			if (wr.Flags&Signal != 0) != (i == 9) {
				t.Errorf("work %d of 10 has flags %#x", i, wr.Flags)
			}
		}
		return true
	})
	if x.sends() != 0 {
		t.Errorf("%d operations are sent, and none was carried out", x.sends())
	}
	w.hold(x, false)
	w.until("All ten are sent.", func() bool { return x.sends() == 10 })
	w.until("All ten have come.", func() bool { return len(y.told()) == 10 })
}

// TestSignalsInLongRuns: places become free while the rest of a long run is carried out.
func TestSignalsInLongRuns(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.hold(x, true)
	for range 64 {
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm})
	}
	x.l.Flush()
	w.locked(func() bool {
		for i, wr := range x.qp().sq {
			if (wr.Flags&Signal != 0) != (i%16 == 15) {
				t.Errorf("work %d of 64 has flags %#x", i, wr.Flags)
			}
		}
		return true
	})
	w.hold(x, false)
	w.until("All are sent.", func() bool { return x.sends() == 64 && len(y.told()) == 64 })
}

// TestTailsAndData: a tail may be used again when Post has returned, data when it is sent: the
// device reads it where it is.
func TestTailsAndData(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.hold(x, true)
	data, tail := []byte("data"), []byte("tail")
	for range 100 { // some of them wait for a place
		x.post(transport.Op{Kind: transport.OpSend, Data: data, Tail: tail})
	}
	copy(tail, "gone")
	w.locked(func() bool {
		if p := x.qp().sq[0].Piece[0]; &p[0] != &data[0] {
			t.Error("the data was copied, though the device can read it")
		}
		return true
	})
	w.hold(x, false)
	w.until("All have come.", func() bool { return len(y.told()) == 100 })
	for i, s := range y.told() {
		if s != `received "datatail" 0x0 false` {
			t.Fatalf("number %d: %s", i, s)
		}
	}
}

// TestMemoryOfItsOwn: a device that cannot read all memory is given what it can, and copies of
// the other.
func TestMemoryOfItsOwn(t *testing.T) {
	w := newWorld(t, func(v *fakeVerbs) { v.info.Caps.AnyMemory = false })
	x, y := w.started()
	own, err := w.pa.Memory(8)
	if err != nil {
		t.Fatal(err)
	}
	adopted := make([]byte, 64)
	release, err := w.pa.Adopt(adopted)
	if err != nil {
		t.Fatal(err)
	}
	other := make([]byte, 8)
	w.hold(x, true)
	for _, c := range []struct {
		name   string
		data   []byte
		copied bool
	}{
		{"of Memory", own, false}, {"part of it", own[3:5], false},
		{"adopted", adopted, false}, {"the end of it", adopted[60:], false}, {"other", other, true},
	} {
		x.post(transport.Op{Kind: transport.OpSend, Data: c.data})
		w.locked(func() bool {
			p := x.qp().sq[len(x.qp().sq)-1].Piece[0]
			if (&p[0] != &c.data[0]) != c.copied {
				t.Errorf("%s: copied %v", c.name, !c.copied)
			}
			return true
		})
	}
	other[0] = 99 // it was copied
	w.hold(x, false)
	w.until("All have come.", func() bool { return len(y.told()) == 5 })
	if y.told()[4] != `received "\x00\x00\x00\x00\x00\x00\x00\x00" 0x0 false` {
		t.Error(y.told()[4])
	}
	release()
	w.a.Refuse = errors.New("no more can be pinned")
	if release, err := w.pa.Adopt(adopted); err != w.a.Refuse || release != nil || w.pa.adopted.has(adopted) {
		t.Errorf("adopted by a device that refuses: %v", err)
	}
	if b, err := w.pa.Memory(8); err != w.a.Refuse || b != nil {
		t.Errorf("memory of a device that has none: %v", err)
	}
	w.a.Refuse = nil
	w.hold(x, true)
	x.post(transport.Op{Kind: transport.OpSend, Data: adopted})
	w.locked(func() bool {
		if p := x.qp().sq[0].Piece[0]; &p[0] == &adopted[0] {
			t.Error("memory was handed over that is not adopted any more")
		}
		return true
	})
	w.hold(x, false)
	x.post(transport.Op{Kind: transport.OpWrite, Data: make([]byte, copyRoom+1)})
	if err := w.wantClosed(x); err == nil || err == io.EOF {
		t.Errorf("a write too long to be copied: %v", err)
	}
	w.wantClosed(y)
	w.pa.Close()
}

// TestLateOperations: what there is no place for is kept in order, charged, and handed over
// when there is.
func TestLateOperations(t *testing.T) {
	var charged int
	w := newWorld(t, func(v *fakeVerbs) { v.info.MaxSends = 8 })
	w.pa.Charge = func(peer netip.Addr, n int) error {
		if peer != w.b.info.Addr {
			t.Errorf("%d bytes are charged to %v", n, peer)
		}
		charged += n // under the link's lock
		return nil
	}
	x, y := w.started()
	before := charged
	w.hold(x, true)
	const n = 300
	for i := range n {
		x.l.Post(&transport.Op{Kind: transport.OpSend, Tail: fmt.Append(nil, i)})
	}
	x.l.Flush()
	if grown := charged - before; grown < n-8 || grown%segmentBytes != 0 {
		t.Errorf("%d bytes more are charged for %d operations that wait", grown, n-8)
	}
	w.locked(func() bool {
		if len(x.qp().sq) != 8 {
			t.Errorf("the device has %d work requests, and 8 places", len(x.qp().sq))
		}
		return true
	})
	w.hold(x, false)
	w.until("All have come.", func() bool { return len(y.told()) == n && x.sends() == n })
	for i, s := range y.told() {
		if s != fmt.Sprintf(`received "%d" 0x0 false`, i) {
			t.Fatalf("number %d: %s", i, s)
		}
	}
	if charged != before {
		t.Errorf("%d bytes are still charged", charged-before)
	}
	x.l.Close()
	w.wantClosed(x)
	if charged != 0 {
		t.Errorf("%d bytes are charged for a link that is closed", charged)
	}
}

// TestChargeRefused: without memory there is no link, and one that needs more of it ends.
func TestChargeRefused(t *testing.T) {
	w := newWorld(t, func(v *fakeVerbs) { v.info.MaxSends = 8 })
	full := errors.New("no memory for that peer")
	have := 0
	room := 0
	charge := func(_ netip.Addr, n int) error {
		if n > 0 && have+n > room {
			return full
		}
		have += n
		return nil
	}
	w.pa.Charge = charge
	ln := w.listen(func(q transport.ConnRequest) { t.Error("it was asked") })
	if _, _, err := w.dial(ln, w.pa.NewDomain(), nil); !errors.Is(err, full) {
		t.Errorf("a link without memory: %v", err)
	}
	for _, c := range []struct {
		name string
		room int
	}{{"receives", 8*workBytes + tailBytes(8)}, {"operations that wait", 8*workBytes + tailBytes(8) + 64*1024}} {
		room = c.room
		x, y := w.link()
		x.l.Start(x, 1024)
		y.l.Start(y, 1024)
		w.hold(x, true)
		for range 9 {
			x.post(transport.Op{Kind: transport.OpSend})
		}
		if err := w.wantClosed(x); !errors.Is(err, full) {
			t.Errorf("%s: closed with %v", c.name, err)
		}
		if w.wantClosed(y); have != 0 {
			t.Errorf("%s: %d bytes are charged", c.name, have)
		}
	}
}

// TestWaitsForThePeer: the accepting side hands nothing over before the peer has taken the
// connection.
func TestWaitsForThePeer(t *testing.T) {
	w := newWorld(t, nil)
	d := w.pb.NewDomain()
	y := &end{d: d}
	posted := make(chan struct{})
	ln := w.listen(func(q transport.ConnRequest) {
		l, err := q.Accept(d, w.attr, nil)
		if err != nil {
			t.Error(err)
			return
		}
		y.l = l.(*link)
		y.l.Start(y, 16)
		close(posted)
	})
	w.b.holdRTU = make(chan struct{})
	x := &end{d: w.pa.NewDomain()}
	var err error
	if x.l, _, err = w.dial(ln, x.d, nil); err != nil {
		t.Fatal(err)
	}
	<-posted
	x.l.Start(x, 16)
	y.post(send("hello"))
	w.settled()
	if w.locked(func() bool { return w.b.posts > 0 }) {
		t.Error("work was handed over before the peer took the connection")
	}
	close(w.b.holdRTU)
	w.wantTold(x, `received "hello" 0x0 false`)
	x.l.Close()
	w.wantClosed(y)
	w.clean()
}

// TestSlotsArePostedAgain: as many slots as the link is made for are there in front of the
// handler's answer, those that a message lies in when it was read.
func TestSlotsArePostedAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.attr.Recvs = 3
	x, y := w.started()
	count := func() (n int) {
		w.locked(func() bool { n = len(y.qp().rq); return true })
		return n
	}
	if n := count(); n != 3 {
		t.Fatalf("%d slots are posted, and 3 were asked for", n)
	}
	var free []int
	y.on = func(string) error { free = append(free, count()); return nil }
	x.post(transport.Op{Kind: transport.OpWriteImm})
	w.until("A write has come.", func() bool { return len(y.told()) == 1 })
	x.post(transport.Op{Kind: transport.OpSend})
	w.until("An empty send has come.", func() bool { return len(y.told()) == 2 })
	x.post(send("a"))
	w.until("A send has come.", func() bool { return len(y.told()) == 3 })
	w.settled()
	if fmt.Sprint(free) != "[3 3 2]" || count() != 3 {
		t.Errorf("in the handler there are %v slots, afterwards %d", free, count())
	}
	for range 20 {
		x.post(send("a"), send("b"), transport.Op{Kind: transport.OpWriteImm})
	}
	w.until("All have come.", func() bool { return len(y.told()) == 63 })
	w.settled()
	if count() != 3 {
		t.Errorf("%d slots are posted at last", count())
	}
}

// TestNobodyIsStarted: without slots the peer waits, and loses nothing.
func TestNobodyIsStarted(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	x.l.Start(x, 16)
	x.post(transport.Op{Kind: transport.OpWriteImm, Imm: 5}, send("b"))
	w.settled()
	if x.sends() != 0 {
		t.Error("it was sent to nobody")
	}
	y.l.Start(y, 16)
	w.wantTold(y, "written 0 0x5", `received "b" 0x0 false`)
}

// TestManyAtOnce: more completions than a turn takes are all told, though the device calls
// once.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.attr = transport.LinkAttr{Sends: 1000, Recvs: 1000}
	x, y := w.started()
	w.hold(x, true)
	for range 1000 {
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm})
	}
	x.l.Flush()
	// All of it is carried out in one go, on the other reactor, while y's is kept busy.
	busy := make(chan struct{})
	w.b.r.Do(func() { <-busy })
	w.hold(x, false)
	w.until("All are sent.", func() bool { return x.sends() == 1000 })
	close(busy)
	w.until("All have come.", func() bool { return len(y.told()) == 1000 })
}

// TestDrains: Closed comes when the device has completed the last of what was posted to it, and
// not before; then it has nothing of the link. No data is read after that.
func TestDrains(t *testing.T) {
	for _, by := range []string{"owner", "peer", "device", "handler"} {
		w := newWorld(t, nil)
		x, y := w.started()
		w.locked(func() bool { w.a.Slow, w.b.Slow = true, true; return true })
		w.hold(x, true)
		data := []byte("data")
		x.post(transport.Op{Kind: transport.OpSend, Data: data})
		switch by {
		case "owner":
			x.l.Close()
		case "peer":
			y.l.Close()
		case "device":
			w.locked(func() bool { x.qp().fail(&StatusError{Op: Send, Status: OtherFailure}); return true })
		case "handler":
			x.on = func(string) error { return io.ErrNoProgress }
			y.post(send("a"))
		}
		w.settled()
		if x.why() != nil || w.locked(func() bool { return x.qp().closed }) {
			t.Errorf("%s: closed with %v before the device had completed everything", by, x.why())
		}
		w.a.flush()
		w.b.flush()
		w.wantClosed(x)
		w.wantClosed(y)
		w.clean()
	}
}

// TestEndsUnstarted: when Close of a link returns that was not started, its data is not read
// any more.
func TestEndsUnstarted(t *testing.T) {
	w := newWorld(t, nil)
	x, _ := w.link()
	w.hold(x, true)
	x.post(send("a"))
	x.l.Close()
	w.locked(func() bool {
		if !x.qp().closed {
			t.Error("the device still has work of a link that is closed")
		}
		return true
	})
	x.l.Start(x, 16)
	w.wantClosed(x)
}

// TestWhatCameBefore: what was received before the peer ended the link is told; before its
// owner did, not.
func TestWhatCameBefore(t *testing.T) {
	for _, by := range []string{"peer", "owner", "handler"} {
		w := newWorld(t, nil)
		x, y := w.started()
		busy := make(chan struct{})
		if by == "handler" {
			y.on = func(string) error { return io.ErrNoProgress }
		}
		w.settled()
		w.b.r.Do(func() { <-busy })
		x.post(send("a"), send("b"))
		w.until("Both are sent.", func() bool { return x.sends() == 2 })
		var want error
		switch by {
		case "peer":
			x.l.Close()
			want = io.EOF
		case "owner":
			y.l.Close()
		case "handler":
			want = io.ErrNoProgress
		}
		w.settledOnly(w.a)
		close(busy)
		if err := w.wantClosed(y); want != nil && err != want {
			t.Errorf("%s: closed with %v", by, err)
		}
		n := map[string]int{"peer": 2, "owner": 0, "handler": 1}[by]
		if got := y.told(); len(got) != n {
			t.Errorf("%s: told %q, want %d of them", by, got, n)
		}
	}
}

// TestReasons: a link ends with what happened, in words and as an errno.
func TestReasons(t *testing.T) {
	for status, errno := range map[Status]syscall.Errno{
		RetryExceeded: syscall.ETIMEDOUT, RNRExceeded: syscall.ETIMEDOUT, RemoteAccess: syscall.EPROTO,
		RemoteInvalid: syscall.EPROTO, RemoteOperation: syscall.EIO, LocalProtection: syscall.EIO, OtherFailure: syscall.EIO,
	} {
		w := newWorld(t, nil)
		x, y := w.started()
		w.locked(func() bool { x.qp().dead = status; return true })
		x.post(send("a"), send("b"))
		err := w.wantClosed(x)
		if !errors.Is(err, errno) || !bytes.Contains([]byte(err.Error()), []byte(status.String())) ||
			!bytes.Contains([]byte(err.Error()), []byte(x.l.RemoteAddr().String())) {
			t.Errorf("%v: closed with %v", status, err)
		}
		if x.sends() != 0 {
			t.Errorf("%v: %d operations are sent", status, x.sends())
		}
		if err := w.wantClosed(y); err != io.EOF { // it was told goodbye
			t.Errorf("%v: the peer closed with %v", status, err)
		}
	}
}

// TestTooLong: a send that no slot takes ends the link at both ends.
func TestTooLong(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	x.l.Start(x, 8)
	y.l.Start(y, 8)
	x.post(send("12345678"), send("123456789"), send("a"))
	if err := w.wantClosed(y); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("the receiver closed with %v", err)
	}
	if err := w.wantClosed(x); !errors.Is(err, syscall.EPROTO) {
		t.Errorf("the sender closed with %v", err)
	}
	w.wantTold(y, `received "12345678" 0x0 false`)
}

// TestFlushIsBounded: a caller whose Flush meets others who post hands over a few runs, and the
// reactor goes on, also before the link is started.
func TestFlushIsBounded(t *testing.T) {
	for _, start := range []bool{true, false} {
		w := newWorld(t, nil)
		x, y := w.link()
		if start {
			x.l.Start(x, 16)
		}
		y.l.Start(y, 16)
		w.settled()
		busy := make(chan struct{})
		w.a.r.Do(func() { <-busy })
		posts, left := 0, 40
		x.qp().onPost = func() {
			posts++
			if left--; left > 0 {
				x.l.Post(&transport.Op{Kind: transport.OpWriteImm})
			}
		}
		x.post(transport.Op{Kind: transport.OpWriteImm})
		if posts != maxRuns {
			t.Errorf("one Flush handed over %d runs; at most %d", posts, maxRuns)
		}
		close(busy)
		w.until("The rest has come.", func() bool { return len(y.told()) == 40 })
	}
}

// TestRefusedWork: work that the device refuses ends the link, also if what was posted before
// it has been done and asks for no completion.
func TestRefusedWork(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	for _, imm := range []uint32{1, 2, badImm, 3} {
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Imm: imm})
	}
	x.l.Flush()
	if err := w.wantClosed(x); !strings.Contains(err.Error(), "not that") {
		t.Errorf("closed with %v", err)
	}
	w.wantClosed(y)
	w.wantTold(y, "written 0 0x1", "written 0 0x2")

	w = newWorld(t, func(v *fakeVerbs) { v.Window = 60 })
	x, y = w.started()
	w.hold(x, true)
	for range 64 {
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm})
	}
	x.l.Flush()
	if err := w.wantClosed(x); !strings.Contains(err.Error(), "fewer places") {
		t.Errorf("closed with %v", err)
	}
	w.wantClosed(y)
}

// TestEndsWhileHandingOver: the queue pair is not closed while a thread hands work to it, and
// the link ends when that has returned.
func TestEndsWhileHandingOver(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.settled()
	x.qp().onPost = func() {
		y.l.Close()
		x.l.Close()
		w.until("The device has flushed everything.", func() bool {
			w.settled()
			return w.locked(func() bool { return x.qp().failed && x.qp().slots == 0 })
		})
		w.settled()
	}
	x.post(send("a"))
	w.wantClosed(x)
	w.wantClosed(y)
}

// TestSlowUnstarted: a device that takes long to flush keeps its queue pair until it has.
func TestSlowUnstarted(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.link()
	w.hold(x, true)
	x.post(send("a"))
	w.locked(func() bool { w.a.Slow = true; return true })
	x.l.Close()
	y.l.Close()
	w.settled()
	if w.locked(func() bool { return x.qp().closed }) {
		t.Error("the queue pair was closed with work of it")
	}
	w.a.flush()
	w.clean()
}

// TestNothingAfterClose: a handler that has ended the link is told nothing more of what has come
// together with that.
func TestNothingAfterClose(t *testing.T) {
	for _, ops := range [][]transport.Op{
		{send("a"), send("b")},
		{{Kind: transport.OpSendInval, Data: []byte("a")}},
	} {
		w := newWorld(t, nil)
		x, y := w.started()
		y.on = func(string) error { y.l.Close(); return nil }
		ops[0].Key, _ = y.d.Register(make([]byte, 1))
		w.settled()
		busy := make(chan struct{})
		w.b.r.Do(func() { <-busy })
		x.post(ops...)
		w.until("They are sent.", func() bool { return x.sends() == len(ops) })
		close(busy)
		w.wantClosed(y)
		if got := y.told(); len(got) != 1 {
			t.Errorf("told %q", got)
		}
	}
}
