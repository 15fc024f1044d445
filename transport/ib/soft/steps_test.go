package soft

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce/cm"
	"github.com/rdsd/rdsd/transport/ib"
)

// TestRoomOfABox: as many messages and pieces go into it as it has, and not one more.
func TestRoomOfABox(t *testing.T) {
	for _, c := range []struct {
		n, pieces, msgs, more int
		want                  bool
	}{
		{0, 0, outMsgs, outPieces, true}, {0, 0, outMsgs + 1, 1, false}, {0, 0, 1, outPieces + 1, false},
		{outMsgs - 3, 5, 3, 1, true}, {outMsgs - 3, 5, 4, 1, false}, {1, outPieces - 7, 1, 7, true}, {1, outPieces - 7, 1, 8, false},
	} {
		if got := (&outbox{n: c.n, pieces: c.pieces}).room(c.msgs, c.more); got != c.want {
			t.Errorf("%+v: room: %v", c, got)
		}
	}
}

// TestOneStep: what the cores tell a device in a step. Messages of the connection manager are
// kept up to a bound, and nothing else is; a queue pair's handler is called once for however
// much has completed; the connection manager hears of a first packet, if it is of a queue pair
// that there is.
func TestOneStep(t *testing.T) {
	x, _ := connected(t, nil)
	d, q := x.d, x.q.(*queuePair)
	x.ready = func() {}
	before := counter(d, "dropped_mads")
	d.mu.Lock()
	defer d.mu.Unlock()
	e, from := (*env)(d), netip.AddrPortFrom(d.cfg.Addr, 4791)
	if d.numMADs != 0 || len(d.arrived) != 0 || q.queued {
		t.Fatal("a step is under way")
	}
	for _, n := range []int{0, cm.MADLen - 1, cm.MADLen + 1} {
		if e.MAD(from, make([]byte, n)); d.numMADs != 0 {
			t.Errorf("%d bytes are taken for a message", n)
		}
	}
	for range waiting + 5 {
		e.MAD(from, make([]byte, cm.MADLen))
	}
	if d.numMADs != waiting || d.stats.DroppedMADs != before+8 {
		t.Errorf("%d messages are kept, %d were dropped", d.numMADs, d.stats.DroppedMADs-before)
	}
	d.numMADs = 0
	e.Arrived(q.rq)
	e.Arrived(nil)
	if len(d.arrived) != 1 || d.arrived[0] != q {
		t.Errorf("of %v the first packet came", d.arrived)
	}
	d.arrived = d.arrived[:0]
	events := len(d.events)
	for range 3 {
		e.Completed(q.rq)
	}
	e.Completed(nil)
	if n := len(d.events) - events; n != 1 {
		t.Errorf("the handler is to be called %d times", n)
	}
	d.leave(d.m.Clock())
}

// TestOfAnotherDevice: a queue pair is connected by its own device alone.
func TestOfAnotherDevice(t *testing.T) {
	a, b := devices(t, nil)
	x := newEnd(t, a, depths)
	if q, err := a.own(x.q); err != nil || q != x.q {
		t.Errorf("its own: %v", err)
	}
	for what, q := range map[string]ib.QP{"of another device": newEnd(t, b, depths).q, "of another kind": struct{ ib.QP }{x.q}, "none": nil} {
		if _, err := a.own(q); err == nil {
			t.Errorf("one %s is taken", what)
		}
	}
}

// TestOneSendsAtATime: what is posted while somebody sends waits until he looks again, and nothing
// is sent once the device is shut.
func TestOneSendsAtATime(t *testing.T) {
	x, y := connected(t, nil)
	y.slots(2, 16)
	set := func(f func()) {
		x.d.mu.Lock()
		defer x.d.mu.Unlock()
		f()
	}
	was := counter(x.d, "send_calls")
	set(func() { x.d.out.busy = true })
	x.post(ib.WR{ID: 1, Op: ib.Send, Flags: ib.Signal})
	if n := counter(x.d, "send_calls"); n != was {
		t.Errorf("two send at a time")
	}
	set(func() { x.d.out.busy, x.d.shut = false, true })
	x.d.flush()
	if n := counter(x.d, "send_calls"); n != was {
		t.Errorf("it sends when it is shut")
	}
	set(func() { x.d.shut = false })
	x.d.flush()
	if c := x.next(); c.ID != 1 || c.Status != ib.OK {
		t.Errorf("%+v", c)
	}
	y.next()
}

// TestAnotherInterface: bursts are tried again when the interface is another one, and not before;
// a connection whose packets are too large for it ends at once, at both ends.
func TestAnotherInterface(t *testing.T) {
	x, y := connected(t, nil)
	d := x.d
	if !d.sock.canSegment() {
		t.Skip("this kernel cuts no bursts")
	}
	d.mu.Lock()
	refused := func() bool { return d.dev.Refused(d.m.Clock(), y.d.cfg.Addr) }
	if !refused() {
		t.Error("bursts to a peer that takes none are not given up")
	}
	same := d.port
	if d.change(same, nil); refused() {
		t.Error("bursts are tried again though nothing has changed")
	}
	if d.change(port{netdev: "other", mtu: same.mtu}, nil); !refused() {
		t.Error("bursts are not tried again over another interface")
	}
	if len(d.pairs()) == 0 || x.q.(*queuePair).over {
		t.Error("a connection has ended whose packets pass")
	}
	m := *d.m
	m.Interface = func() (string, int, error) { return "other", 256, nil }
	d.m = &m
	d.mu.Unlock()
	before := counter(d, "send_calls")
	if d.Changed(); counter(d, "send_calls") == before {
		t.Error("the peer is not told at once")
	}
	x.end()
	y.end()
}

// TestAMessageThatFails: it is skipped and noted, and whoever collected it learns that one was
// refused.
func TestAMessageThatFails(t *testing.T) {
	s := openTestSocket(t, local(6))
	for err, cut := range map[syscall.Errno]bool{unix.EPERM: false, unix.ENOBUFS: false, unix.EINVAL: true, unix.EIO: true} {
		for _, size := range []int{0, 8} { // a burst is cut by the system
			f := &failing{err: err}
			f.left.Store(1)
			s.fault = f.fault
			var o sender
			o.box.message(netip.AddrPortFrom(netip.MustParseAddr(local(6)), 4791), 0, size)
			o.box.piece(make([]byte, 8))
			var to []netip.Addr
			if cut && size > 0 {
				to = []netip.Addr{netip.MustParseAddr(local(6))}
			}
			if o.push(s) || !o.refused || o.box.first != 1 || !slices.Equal(o.cut, to) {
				t.Errorf("%v: refused %v, %d skipped, bursts are to end to %v", err, o.refused, o.box.first, o.cut)
			}
		}
	}
	f := &failing{err: unix.EAGAIN}
	f.left.Store(1)
	s.fault = f.fault
	var o sender
	o.box.message(netip.AddrPortFrom(netip.MustParseAddr(local(6)), 4791), 0, 0)
	o.box.piece(make([]byte, 8))
	if !o.push(s) || o.refused || o.box.first != 0 {
		t.Errorf("a full socket: refused %v, %d skipped", o.refused, o.box.first)
	}
	if o.push(s) || o.refused || o.box.first != 1 {
		t.Errorf("later: refused %v, %d sent", o.refused, o.box.first)
	}
}
