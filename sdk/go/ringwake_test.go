//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// Who has to be told what, where nothing else comes that would tell it.

// TestOutcomesWithoutDaemon: a daemon that dies and does not come back decides
// everything: who waits for an outcome is told so, not when another daemon is there.
func TestOutcomesWithoutDaemon(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr, WithOutcomes())
	ctx := testContext(t)
	tag, err := a.SendTag(ctx, stuckAddr, []byte("stuck"))
	if err != nil {
		t.Fatal(err)
	}
	got := goErr(func() error {
		for o, err := range a.Outcomes(ctx) {
			if err == nil && (o.Tag != tag || o.Kind != Unknown || o.Reason != reasonRestarted) {
				err = fmt.Errorf("%+v", o)
			}
			return err
		}
		return errors.New("no outcome")
	})
	r := a.fe.(*rings)
	eventually(t, "the waiter sleeps", func() bool {
		r.waiters.mu.Lock()
		defer r.waiters.mu.Unlock()
		return len(r.waiters.list) == 1 && r.waiters.list[0].slept && r.waiters.sleeper == nil
	})
	d.stop()
	if err := waitErr(t, got); err != nil {
		t.Error(err)
	}
}

// TestDoorbellOutlivesWhoHearsIt: the end of a daemon rings the doorbell and ends the link at
// once. The descriptor is not closed, and its number another file's, before nobody reads it.
func TestDoorbellOutlivesWhoHearsIt(t *testing.T) {
	d := newRingDaemon(t)
	r := d.bindRing(localAddr).fe.(*rings)
	r.mu.Lock()
	l := r.cur
	r.mu.Unlock()
	l.bell.listen()
	r.waiters.parked.Store(1)
	r.waiters.mu.Lock() // keep stops here, with the ring in its hand
	d.sock(localAddr).theirs.Ring()
	eventually(t, "the ring is heard", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(l.bell.fd), Events: unix.POLLIN}}, 0)
		return n == 0 && err == nil
	})
	d.stop()
	eventually(t, "the link is over", func() bool {
		r.rxMu.Lock()
		defer r.rxMu.Unlock()
		return r.rx == nil
	})
	if n := l.refs.Load(); n != 1 {
		t.Errorf("%d references to the link while its doorbell is heard", n)
	}
	r.waiters.parked.Store(0)
	r.waiters.mu.Unlock()
	eventually(t, "the mapping is gone", func() bool { return l.refs.Load() == 0 })
}

// TestPumpTellsReaders: what a Request takes from the ring and has no use for is news
// for those who wait to receive, also where the doorbell told nobody but the Request.
func TestPumpTellsReaders(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	r := b.fe.(*rings)
	r.rxMu.Lock()
	w := r.rxWaiterLocked(nil)
	r.rxMu.Unlock()
	r.waiters.add(w) // parked; nobody hears the doorbell for it
	if err := a.Send(ctx, peerAddr, []byte("news")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram", func() bool { return linkOf(b).region.RecvTail().Load() != w.recvHead })
	seq := r.rxSeq.Load()
	req := &requestWaiter{from: stuckAddr, reply: make(chan Datagram, 1), failed: make(chan struct{})}
	r.addRequest(req)
	select {
	case <-w.ch:
	default:
		t.Error("a parked reader was told nothing")
	}
	if r.rxSeq.Load() == seq || !w.ready() {
		t.Error("a reader that is about to park is told nothing")
	}
	r.removeRequest(req)
	r.waiters.remove(w)
	w.done()
	if got, err := b.Recv(ctx); err != nil || string(got.Payload) != "news" {
		t.Errorf("%q, %v", got.Payload, err)
	}
}

// TestRepliesGiveRoomBack: what Requests take over rings that hold little is given
// back as they go: the daemon always finds room for the next reply.
func TestRepliesGiveRoomBack(t *testing.T) {
	d := newRingDaemon(t)
	d.regions(shm.Spec{Flows: 8, Sends: 4, Events: 8, Receives: 4, Releases: 8, SendArena: 64 << 10, RecvArena: 256 << 10})
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	answered := goErr(func() error { // ends with the context, or the last one
		for range 60 {
			q, err := b.Recv(ctx)
			if err != nil {
				return err
			}
			if err := b.Reply(ctx, q, make([]byte, 20000)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range 60 { // far more than the arena holds
		got, err := a.Request(ctx, peerAddr, []byte{byte(i)})
		if err != nil || len(got.Payload) != 20000 {
			t.Fatalf("reply %d: %d bytes, %v", i, len(got.Payload), err)
		}
	}
	if err := waitErr(t, answered); err != nil {
		t.Error(err)
	}
}

// TestLot: what all who are parked wait for together is what the daemon is told;
// each is woken for what it waits for alone, once however often.
func TestLot(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr)
	d.pause(true)
	l := linkOf(a)
	r := a.fe.(*rings)
	var seq atomic.Uint32
	park := func(bits uint32) *waiter {
		w := (*waiter)(nil).renew(r, l, bits)
		w.of = &seq
		r.waiters.add(w)
		r.waiters.arm(w)
		return w
	}
	sleeps := func(want uint32) {
		t.Helper()
		if got := l.region.ClientSleeps().Load(); got != want {
			t.Errorf("the daemon is told %#x, want %#x", got, want)
		}
	}
	woken := func(bits uint32, want ...*waiter) {
		t.Helper()
		r.waiters.wake(bits)
		r.waiters.wake(bits)
		n := 0
		for _, w := range r.waiters.list {
			for len(w.ch) > 0 {
				<-w.ch
				n++
			}
		}
		if n != len(want) {
			t.Errorf("%#x woke %d, want %d", bits, n, len(want))
		}
	}
	recv := park(shm.ClientWaitsRecv)
	sleeps(shm.ClientWaitsRecv)
	both := park(shm.ClientWaitsEvent | shm.ClientWaitsSendRoom)
	sleeps(shm.ClientWaitsRecv | shm.ClientWaitsEvent | shm.ClientWaitsSendRoom)
	flow := park(shm.ClientWaitsFlow)
	again := park(shm.ClientWaitsRecv)
	sleeps(allBits)
	woken(shm.ClientWaitsRecv, recv, again)
	woken(shm.ClientWaitsEvent, both)
	woken(shm.ClientWaitsEvent|shm.ClientWaitsSendRoom, both)
	woken(shm.ClientWaitsFlow, flow)
	woken(allBits, recv, both, flow, again)
	woken(0)
	// One at a time sleeps on the doorbell.
	if !r.waiters.claimDoorbell(recv) || r.waiters.claimDoorbell(both) || r.waiters.claimDoorbell(recv) || r.waiters.sleeper != recv {
		t.Error("two sleep on one doorbell")
	}
	if !r.waiters.leaveDoorbell(recv) || r.waiters.sleeper != nil || !r.waiters.claimDoorbell(both) || !r.waiters.leaveDoorbell(both) {
		t.Error("nobody can sleep where somebody has risen, or nobody else is parked")
	}
	r.waiters.remove(recv)
	r.waiters.arm(again)
	sleeps(allBits) // the other one waits for it still
	r.waiters.remove(again)
	r.waiters.arm(flow)
	sleeps(allBits &^ shm.ClientWaitsRecv)
	r.waiters.remove(both)
	r.waiters.arm(flow)
	sleeps(shm.ClientWaitsFlow)
	if r.waiters.parked.Load() != 1 || flow.at != 0 || r.waiters.list[0] != flow {
		t.Errorf("%d are parked", r.waiters.parked.Load())
	}
	if !r.waiters.claimDoorbell(flow) || r.waiters.leaveDoorbell(flow) {
		t.Error("who is parked alone is not alone")
	}
	r.waiters.remove(flow)
	sleeps(0) // nobody is to be rung for
	if r.waiters.parked.Load() != 0 || r.waiters.count != [4]int{} {
		t.Errorf("%d are parked, %v", r.waiters.parked.Load(), r.waiters.count)
	}
	before := l.refs.Load()
	for _, w := range []*waiter{recv, both, flow, again} {
		w.done()
	}
	if n := before - l.refs.Load(); n != 4 {
		t.Errorf("%d references were given back of 4", n)
	}
	d.pause(false)
}

// TestSpinBudget: spins for nothing become short, but for one in sixteen; spins that
// pay become long.
func TestSpinBudget(t *testing.T) {
	var p waitList
	const d = 80 * time.Microsecond
	want := func(what string, n time.Duration) {
		t.Helper()
		if got := p.budget(d, 0); got != n {
			t.Errorf("%s: %v, want %v", what, got, n)
		}
	}
	want("at first", d)
	for range manyMisses - 1 {
		p.spun(false)
	}
	want("after fifteen for nothing", d)
	p.spun(false)
	want("the sixteenth tries again", d)
	p.spun(false)
	want("afterwards", d/8)
	for range manyMisses - 2 {
		p.spun(false)
	}
	want("until", d/8)
	p.spun(false)
	want("the thirty-second", d)
	p.spun(true)
	want("one that paid", d)
	for range manyHits - 2 {
		p.spun(true)
	}
	want("seven that paid", d)
	p.spun(true)
	want("eight", 4*d)
	for range 3 * manyHits {
		p.spun(true)
	}
	p.spun(false)
	want("one for nothing after many that paid", d)
	if n := p.misses.Load(); n != 1 {
		t.Errorf("%d misses", n)
	}
}

// TestOutcomesUnread: outcomes that nobody reads stop sends, and reading lets them go
// on; batches too.
func TestOutcomesUnread(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithOutcomes()), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	for _, err := range a.Outcomes(ctx) { // nothing is to come any more
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	r := a.fe.(*rings)
	r.outcomes.len.Store(maxOutcomeRuns) // as if there were so many
	wantErr(t, a.TrySend(peerAddr, nil), rdserr.ErrWouldBlock)
	n, err := a.TrySendBatch(ctx, []Datagram{{Addr: peerAddr}})
	if wantErr(t, err, rdserr.ErrWouldBlock); n != 0 {
		t.Errorf("%d were accepted", n)
	}
	wantErr(t, a.Send(short(t, 10*time.Millisecond), peerAddr, nil), rdserr.ErrTimeout)
	r.outcomes.len.Store(maxOutcomeRuns - 1)
	if err := a.TrySend(peerAddr, nil); err != nil {
		t.Error(err)
	}
}

// TestNothingOvertakes: in one batch, what follows a datagram that is held up to the
// same destination is held up too, though that is clear by then.
func TestNothingOvertakes(t *testing.T) {
	d := newRingDaemon(t)
	a, _ := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, []byte("first")); err != nil {
		t.Fatal(err)
	}
	r := a.fe.(*rings)
	r.txMu.Lock()
	defer r.txMu.Unlock()
	f, err := r.tx.send.Flow(peerAddr)
	if err != nil {
		t.Fatal(err)
	}
	r.pass += 2 // there is one before it
	for _, x := range []struct {
		held uint64
		want error
	}{{heldMark(r.pass, true), errOpening}, {heldMark(r.pass, false), rdserr.ErrCongested}} {
		f.Held = x.held
		if n, err := r.postRunLocked([]Datagram{{Addr: peerAddr}}, 100, true); n != 0 || !errors.Is(err, x.want) {
			t.Errorf("a flow held up as %d: %d posted, %v; want %v", x.held, n, err, x.want)
		}
	}
	f.Held = heldMark(r.pass-1, false) // of an earlier pass
	if n, err := r.postRunLocked([]Datagram{{Addr: peerAddr}}, r.nextTag+1, true); n != 1 || err != nil {
		t.Errorf("a flow that was held up before: %d posted, %v", n, err)
	} else {
		r.nextTag++
	}
}

// A flow whose entry went to another one in the same pass holds up what follows all the same,
// however soon the daemon has looked at it again.
func TestNothingOvertakesAnEntryThatIsGone(t *testing.T) {
	d := newRingDaemon(t)
	a, _ := d.bindRing(localAddr), d.bindRing(peerAddr)
	r := a.fe.(*rings)
	r.txMu.Lock()
	defer r.txMu.Unlock()
	r.pass++
	f, err := r.tx.send.Flow(peerAddr) // as the pass finds it again, without a mark
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon's look", func() bool { return r.tx.send.State(f).State() == shm.FlowClear })
	if n, err := r.postRunLocked([]Datagram{{Addr: peerAddr}}, 100, true); n != 0 || err != errOpening {
		t.Errorf("%d posted, %v; want %v", n, err, errOpening)
	}
	if n, err := r.postRunLocked([]Datagram{{Addr: peerAddr}}, r.nextTag+1, true); n != 1 || err != nil {
		t.Errorf("the next time: %d posted, %v", n, err)
	} else {
		r.nextTag++
	}
}

// TestBadMessages: a message of the daemon that makes no sense is an error, not an
// empty message.
func TestBadMessages(t *testing.T) {
	field := func(n protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), b)
	}
	lengths := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 77)
	for what, b := range map[string][]byte{
		"cut":                   {fastwire.ServerRecv, 9, 1},
		"no protobuf":           {0xff, 0xff, 0xff},
		"lengths without bytes": field(protowire.Number(fastwire.ServerRecv>>3), lengths),
	} {
		in := &inbound{}
		if err := in.unmarshal(b); err == nil {
			t.Errorf("%s: %+v", what, in)
		}
	}
}

// TestMeasureExactly: one message takes up to its limit of datagrams and of bytes, and
// one datagram however long.
func TestMeasureExactly(t *testing.T) {
	many := make([]Datagram, maxBatchDatagrams+1)
	for i := range many {
		many[i].Addr = peerAddr
	}
	half := Datagram{Addr: peerAddr, Payload: make([]byte, maxBatchBytes/2)}
	one := Datagram{Addr: peerAddr, Payload: make([]byte, 1)}
	for what, x := range map[string]struct {
		ds       []Datagram
		n, bytes int
	}{
		"as many as go": {many[:maxBatchDatagrams], maxBatchDatagrams, 0}, "one more": {many, maxBatchDatagrams, 0},
		"as much as goes": {[]Datagram{half, half}, 2, maxBatchBytes}, "a byte more": {[]Datagram{half, half, one}, 2, maxBatchBytes},
		"a byte less first": {[]Datagram{one, half, half}, 2, maxBatchBytes/2 + 1},
		"nowhere":           {[]Datagram{{}, one}, 0, 0}, "nowhere then": {[]Datagram{one, {}}, 1, 1}, "the last one": {[]Datagram{one}, 1, 1},
	} {
		r := &batchRun{s: &stream{Socket: &Socket{}}, batchErrors: batchErrors{ds: x.ds}}
		if n, bytes := r.measure(0); n != x.n || bytes != x.bytes {
			t.Errorf("%s: %d datagrams of %d bytes, want %d of %d", what, n, bytes, x.n, x.bytes)
		}
	}
	r := &batchRun{s: &stream{Socket: &Socket{maxBytes: 10}}, batchErrors: batchErrors{ds: []Datagram{{Addr: peerAddr, Payload: make([]byte, 10)}, {Addr: peerAddr, Payload: make([]byte, 11)}}}}
	if n, bytes := r.measure(0); n != 1 || bytes != 10 {
		t.Errorf("with a limit of 10: %d datagrams of %d bytes", n, bytes)
	}
}

// TestWatchersLookAtFlows: who watches for congestion, and of whose destinations one has
// refused a call, looks at the state of its flow: the daemon may have told of the change
// before it heard of the watch, and tells nothing again.
func TestWatchersLookAtFlows(t *testing.T) {
	d := newRingDaemon(t)
	a, _, _ := d.bindRing(localAddr), d.bindRing(peerAddr), d.bindRing(otherAddr)
	ctx := testContext(t)
	for _, to := range []netip.AddrPort{peerAddr, otherAddr} {
		if err := a.Send(ctx, to, []byte("known")); err != nil {
			t.Fatal(err)
		}
	}
	d.setFlow(peerAddr, shm.FlowCongested)
	r := a.fe.(*rings)
	r.txMu.Lock()
	r.takeEventsLocked(r.tx)
	w := (*waiter)(nil).renew(r, r.tx, shm.ClientWaitsEvent)
	w.of, w.seq = &r.txSeq, r.txSeq.Load()
	r.watchRefusedLocked(w)
	if len(w.flows) != 0 || w.bits != shm.ClientWaitsEvent {
		t.Errorf("nobody was refused, and %d flows are looked at for %#x", len(w.flows), w.bits)
	}
	r.refused = map[netip.AddrPort]struct{}{peerAddr: {}, stuckAddr: {}} // of one nothing is known
	r.watchRefusedLocked(w)
	f := r.tx.send.Known(peerAddr)
	if len(w.flows) != 1 || w.flows[0].index != f.Index() || w.bits != shm.ClientWaitsEvent|shm.ClientWaitsFlow {
		t.Errorf("%v are looked at for %#x", w.flows, w.bits)
	}
	r.txMu.Unlock()
	eventually(t, "there is nothing to look at", func() bool {
		r.txMu.Lock()
		defer r.txMu.Unlock()
		r.takeEventsLocked(r.tx)
		w.seq = r.txSeq.Load()
		return !w.ready()
	})
	w.bits &^= shm.ClientWaitsEvent // the event may have come before
	d.setFlow(peerAddr, shm.FlowClear)
	eventually(t, "the flow's state is news", w.ready)
	r.txMu.Lock()
	r.refused = nil
	r.txMu.Unlock()
	w.done()
}

// TestRefusedWhileAway: of a destination that refuses a call nothing is noted while there is no
// connection, for what was known of it has gone; watchers look at everything when there is one.
func TestRefusedWhileAway(t *testing.T) {
	d := newRingDaemon(t)
	r := d.bindRing(localAddr).fe.(*rings)
	w := bareWatcher()
	r.watch.add(w, nil)
	defer r.watch.remove(w)
	r.txMu.Lock()
	defer r.txMu.Unlock()
	there := r.tx
	r.tx = nil
	r.triedLocked(peerAddr, rdserr.ErrCongested)
	r.clearedLocked()
	if len(r.refused) != 0 {
		t.Errorf("%v are noted while nothing is known of any", r.refused)
	}
	r.tx = there
	if r.triedLocked(peerAddr, rdserr.ErrCongested); len(r.refused) != 1 {
		t.Errorf("%v are noted, want one", r.refused)
	}
	if r.clearedLocked(); len(r.refused) != 0 {
		t.Errorf("%v are noted when nothing is congested", r.refused)
	}
}
