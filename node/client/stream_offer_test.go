package client

import (
	"context"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// heldEngine looks on while a step is carried out, before its lock is let go.
type heldEngine struct {
	*testEngine
	held func()
}

func (h *heldEngine) Unlock() {
	if h.held != nil {
		h.held()
	}
	h.testEngine.Unlock()
}

// offerTo is a bound stream whose engine has no links. held is called, from now on, at the end of
// each of its steps.
func offerTo(t *testing.T, change func(*rdsdv1.Bind)) (*sockStream, *keptStream, *heldEngine) {
	t.Helper()
	eng := &heldEngine{testEngine: newTestEngine(keptAddr, rds.DefaultConfig())}
	s, k, _ := keptSocketOf(t, eng, change)
	t.Cleanup(func() { eng.held = nil }) // before the socket is closed
	return s, k, eng
}

// crossing is a batch of n datagrams without payload that go to each of dests in turn.
func crossing(n int, wait bool, dests ...rawEndpoint) *inBatch {
	b := &inBatch{id: 1, firstTag: 100, wait: wait, lengths: make([]uint32, n), dests: dests}
	for i := range n {
		b.index = append(b.index, uint32(i%len(dests)))
	}
	return b
}

func peerEndpoint(i int) rawEndpoint {
	return rawEndpoint{addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), addrLen: 4, port: 9000}
}

// answered is what the client is told of its only batch.
func answered(t *testing.T, s *sockStream, k *keptStream) (accepted uint32, errs []*rdsdv1.SendError) {
	t.Helper()
	if err := s.write(true); err != nil {
		t.Fatal(err)
	}
	if len(k.results) != 1 {
		t.Fatalf("%d results", len(k.results))
	}
	switch m := k.results[0].(type) {
	case *outResult:
		return m.accepted, nil
	case *rdsdv1.ServerMessage:
		return m.GetSendResult().GetAccepted(), m.GetSendResult().GetErrors()
	}
	return 0, nil
}

// TestOfferInStretches: a long batch lets the lock go, and gives its turn back, after a few hundred
// datagrams; all are decided as they would be at once, and in order.
func TestOfferInStretches(t *testing.T) {
	for _, wait := range []bool{false, true} {
		s, k, eng := offerTo(t, func(*rdsdv1.Bind) {})
		const n = 2000
		var steps []int
		var last uint64
		eng.held = func() {
			steps = append(steps, int(s.sock.Stats.Accepted-last))
			last = s.sock.Stats.Accepted
		}
		s.send(crossing(n, wait, peerEndpoint(1), peerEndpoint(2)))
		eng.held = nil
		if most := slices.Max(steps); most > nextStretch || steps[0] > firstStretch || len(steps) < n/nextStretch {
			t.Errorf("wait %v: steps of %v datagrams", wait, steps)
		}
		if got, errs := answered(t, s, k); got != n || len(errs) > 0 || s.sock.Info().Undecided != n {
			t.Errorf("wait %v: %d are accepted, errors %v", wait, got, errs)
		}
		if users := s.front.sends.Users(); users != 0 {
			t.Errorf("wait %v: %d users have a turn for good", wait, users)
		}
	}
}

// TestOfferWaitsForItsTurn: while another stream of its user has its turn, a long batch goes no
// further than its first stretch, and holds no lock; it ends with its client.
func TestOfferWaitsForItsTurn(t *testing.T) {
	s, k, eng := offerTo(t, func(*rdsdv1.Bind) {})
	ctx, gone := context.WithCancel(t.Context())
	k.ctx = ctx
	other := s.front.sends.Of(1)
	other.Take(nil)
	first := make(chan struct{})
	eng.held = func() { close(first) } // there is one step alone
	sent := make(chan struct{})
	b := crossing(2000, false, peerEndpoint(1), peerEndpoint(2))
	b.message = 1 << 20
	charged := func() int64 { return s.front.deps.Memory.Kinds()[quota.Waiting].Used }
	go func() { // ends with its client
		defer close(sent)
		s.send(b)
	}()
	<-first
	await.Until(t, time.Minute, "The message that the rest is in is charged.", func() bool { return charged() == b.message })
	eng.testEngine.Lock()
	accepted := s.sock.Stats.Accepted
	eng.testEngine.Unlock()
	if accepted != firstStretch {
		t.Errorf("%d are accepted without a turn", accepted)
	}
	gone()
	<-sent
	if n := charged(); n != 0 {
		t.Errorf("%d bytes stay charged", n)
	}
	if s.sock.Stats.Accepted != firstStretch {
		t.Errorf("%d are accepted of a client that is gone", s.sock.Stats.Accepted)
	}
	other.Leave()
	if users := s.front.sends.Users(); users != 0 {
		t.Errorf("%d users have a turn for good", users)
	}
}

// TestRefusedWithoutTheLock: destinations that nobody can have are refused without the lock, and
// not in words of their own for each datagram.
func TestRefusedWithoutTheLock(t *testing.T) {
	s, k, eng := offerTo(t, func(*rdsdv1.Bind) {})
	steps := 0
	eng.held = func() { steps++ }
	b := crossing(maxBatchDatagrams, false, rawEndpoint{}, rawEndpoint{addrLen: 4, addr: netip.AddrFrom4([4]byte{10}), port: 1 << 16})
	b.index = nil // all go to the first
	one := testing.AllocsPerRun(1, func() { s.send(b) })
	if s.out = s.out[:1]; one > 100 {
		t.Errorf("%v allocations", one)
	}
	_, errs := answered(t, s, k)
	if len(errs) != 1 || errs[0].GetCount() != maxBatchDatagrams || errs[0].GetErrno() != int32(rdserr.ErrInvalid.Errno) || errs[0].GetMessage() != "send.destination[0].address has 0 bytes; want 4 (IPv4) or 16 (IPv6)" {
		t.Errorf("errors %v", errs)
	}
	if steps > 1 { // the one that looks for news
		t.Errorf("%d steps with the lock", steps)
	}
	// Among others they keep their place, and each is told its own.
	many := make([]rawEndpoint, 600)
	for i := range many {
		if i%2 == 0 {
			many[i] = peerEndpoint(i)
		}
	}
	k.results = nil
	s.send(crossing(1200, true, many...))
	got, errs := answered(t, s, k)
	if got != 600 || len(errs) != 600 {
		t.Fatalf("%d are accepted, %d errors", got, len(errs))
	}
	for i, e := range errs {
		if e.GetIndex() != uint32(2*i+1) || e.GetCount() != 1 || e.GetErrno() != int32(rdserr.ErrInvalid.Errno) || (e.GetMessage() != "") != (i < maxBatchErrors) {
			t.Fatalf("error %d is %v", i, e)
		}
	}
}

// refusedAtFirst is a batch that crosses between two destinations, the first of whose datagrams fills the
// socket's buffer until its first stretch is over. The last one goes to last.
func refusedAtFirst(t *testing.T, last rawEndpoint) (accepted uint32, errs []*rdsdv1.SendError) {
	t.Helper()
	s, k, eng := offerTo(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(8 << 10) })
	first := peerEndpoint(1)
	b := crossing(1000, false, first, peerEndpoint(2))
	b.lengths[0], b.payload = 8<<10, make([]byte, 8<<10) // the buffer is full
	eng.held = func() {
		if s.sock.Info().Undecided == 0 {
			return
		}
		eng.held = nil
		if n, _, err := s.sock.Cancel(0, netip.AddrPortFrom(first.addr, uint16(first.port))); n != 1 || err != nil {
			t.Errorf("%d cancelled, %v", n, err)
		}
	}
	b.dests = append(b.dests, last)
	b.index[999] = 2
	s.send(b)
	return answered(t, s, k)
}

// TestRefusedInOrder: room that comes between two stretches is for no datagram behind one to the same
// destination that was refused: that would arrive before it when it is sent again.
func TestRefusedInOrder(t *testing.T) {
	got, errs := refusedAtFirst(t, peerEndpoint(3))
	if got != 2 || len(errs) != 1 || errs[0].GetIndex() != 1 || errs[0].GetCount() != 998 || errs[0].GetErrno() != int32(rdserr.ErrWouldBlock.Errno) {
		t.Errorf("%d are accepted, errors %v", got, errs)
	}
}

// TestRefusedInOrderTwiceListed: nor is it for one to the same destination under another entry of the list.
func TestRefusedInOrderTwiceListed(t *testing.T) {
	got, errs := refusedAtFirst(t, peerEndpoint(1))
	if got != 1 || len(errs) != 1 || errs[0].GetIndex() != 1 || errs[0].GetCount() != 999 {
		t.Errorf("%d are accepted, errors %v", got, errs)
	}
}

// TestClosedBetweenStretches: a socket that is closed meanwhile accepts nothing more, and nothing of
// its batch is held.
func TestClosedBetweenStretches(t *testing.T) {
	s, _, eng := offerTo(t, func(*rdsdv1.Bind) {})
	eng.held = func() {
		eng.held = nil
		s.sock.Close(0)
	}
	before := s.sock.Stats.Accepted
	s.send(crossing(1000, true, peerEndpoint(1), peerEndpoint(2)))
	if n := s.sock.Stats.Accepted - before; n != firstStretch {
		t.Errorf("%d are accepted of a socket that is closed", n)
	}
	if s.windowN != 0 || s.windowSize != 0 {
		t.Errorf("%d batches are in the window", s.windowN)
	}
}

// TestDecidedBetweenStretches: what waited of a batch and is decided before the rest is offered is
// counted once, and the batch is answered when the last one is.
func TestDecidedBetweenStretches(t *testing.T) {
	s, k, eng := offerTo(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(8 << 10) })
	first := peerEndpoint(1)
	b := crossing(1000, true, first, peerEndpoint(2))
	b.lengths[0], b.payload = 8<<10, make([]byte, 8<<10) // what is behind it waits
	steps := 0
	eng.held = func() {
		if steps++; steps != 2 {
			return
		}
		if _, _, err := s.sock.Cancel(0, netip.AddrPortFrom(first.addr, uint16(first.port))); err != nil {
			t.Error(err)
		}
		s.sends = s.sends[:0]
		if replies := s.takeSends(); len(replies) > 0 { // as the pusher does
			t.Errorf("it is answered before all of it is offered: %v", replies)
		}
	}
	s.send(b)
	eng.held = nil
	got, errs := answered(t, s, k)
	refused := 0
	for _, e := range errs {
		refused += int(e.GetCount())
	}
	if got == 0 || refused == 0 || int(got)+refused != 1000 {
		t.Errorf("%d are accepted and %d refused of 1000", got, refused)
	}
	if s.windowN != 0 || s.windowSize != 0 {
		t.Errorf("%d batches are in the window", s.windowN)
	}
}

// TestRunsThatDoNotGo: to look for runs where none goes takes little.
func TestRunsThatDoNotGo(t *testing.T) {
	s, _, eng := offerTo(t, func(*rdsdv1.Bind) {})
	b := crossing(maxBatchDatagrams, true, peerEndpoint(1))
	o := offering{s: s, b: b, call: sendCall{left: len(b.lengths)}}
	gone, looked := 0, 0
	_, now := eng.Lock()
	s.sock.Close(now)                   // it accepts nothing
	for ; o.i < len(b.lengths); o.i++ { // one by itself
		k, cost := o.offerRun(now, 1<<20)
		gone += k
		looked += cost * runsAsOne
	}
	eng.Unlock()
	if gone > 0 || looked > 40*maxBatchDatagrams {
		t.Errorf("%d go, and %d datagrams are looked at for %d", gone, looked, maxBatchDatagrams)
	}
}

// TestRunCosts: a run costs what is looked at for it, wherever in its batch it begins.
func TestRunCosts(t *testing.T) {
	s, _, eng := offerTo(t, func(*rdsdv1.Bind) {})
	b := crossing(3*(maxRun+1), true, peerEndpoint(1))
	o := offering{s: s, b: b, call: sendCall{left: len(b.lengths)}}
	_, now := eng.Lock()
	defer eng.Unlock()
	for i := range 3 {
		if k, cost := o.offerRun(now, 1<<20); k != maxRun || cost != 1+maxRun/runsAsOne {
			t.Errorf("run %d: %d datagrams go, for %d", i, k, cost)
		}
		o.i++ // one that is offered by itself, as behind each run
	}
}

// TestAcceptedKeepsItself: what is accepted of a batch keeps its own bytes, which are charged, and nothing for those
// behind it that are refused.
func TestAcceptedKeepsItself(t *testing.T) {
	for what, wait := range map[string]bool{"at once": false, "waiting": true} {
		s, _, _ := offerTo(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(20000) })
		payload := make([]byte, 1+32<<10)
		send := func() {
			s.send(&inBatch{id: 1, wait: wait, lengths: []uint32{1, 32 << 10}, dests: []rawEndpoint{peerEndpoint(1)}, payload: payload})
			s.out = s.out[:0]
		}
		send() // lists have their size
		before := liveBytes()
		const n = 1000
		for range n {
			send()
		}
		if d, accepted := liveBytes()-before, s.sock.Info().Undecided; d > n*1024 || accepted != n+1 {
			t.Errorf("%s: %d accepted datagrams of a byte keep %d bytes", what, accepted, d)
		}
	}
}

// liveBytes is what lives of Go's memory.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWaitingThatEndsIsRejected: what waited and was not accepted in the end is counted, once.
func TestWaitingThatEndsIsRejected(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Millisecond} {
		s, _, eng := offerTo(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(8 << 10) })
		first := peerEndpoint(1)
		dests := []rawEndpoint{first}
		s.send(&inBatch{id: 1, lengths: []uint32{8 << 10}, dests: dests, payload: make([]byte, 8<<10)})
		const waiting = 5
		b := &inBatch{id: 2, firstTag: 100, wait: true, timeout: timeout, dests: dests, payload: make([]byte, waiting*1000)}
		for range waiting {
			b.lengths = append(b.lengths, 1000)
		}
		s.send(b)
		if timeout == 0 {
			_, now := eng.Lock()
			_, _, err := s.sock.Cancel(now, netip.AddrPortFrom(first.addr, uint16(first.port)))
			eng.Unlock()
			if err != nil {
				t.Fatal(err)
			}
		}
		await.Until(t, 10*time.Second, "The batch is answered.", func() bool { return s.write(true) == nil && s.windowN == 0 })
		got, accepted := s.front.deps.Count.SendRejected.Load(), s.sock.Stats.Accepted
		if got != waiting || accepted+got != 1+waiting {
			t.Errorf("timeout %v: %d are counted as rejected, and %d are accepted of %d", timeout, got, accepted, 1+waiting)
		}
	}
}

// TestLongestTimeout: a time to wait that ends when no clock tells the time any more is not over at once.
func TestLongestTimeout(t *testing.T) {
	s, k, eng := offerTo(t, func(b *rdsdv1.Bind) { b.SetSendBufferBytes(8 << 10) })
	dests := []rawEndpoint{peerEndpoint(1)}
	s.send(&inBatch{id: 1, lengths: []uint32{8 << 10}, dests: dests, payload: make([]byte, 8<<10)})
	for i, timeout := range []time.Duration{math.MaxInt64, math.MaxInt64 - 20*time.Millisecond} {
		s.send(&inBatch{id: uint64(2 + i), firstTag: 100, wait: true, timeout: timeout, dests: dests, lengths: []uint32{1000}, payload: make([]byte, 1000)})
	}
	e, now := eng.Lock()
	e.Tick(now)
	eng.Unlock()
	if err := s.write(true); err != nil {
		t.Fatal(err)
	}
	if len(k.results) != 1 || s.windowN != 2 {
		t.Errorf("%d of 2 batches wait, and %d are answered", s.windowN, len(k.results)-1)
	}
}
