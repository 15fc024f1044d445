package rds

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// until lets timers run in steps of a millisecond, at most limit, until ok. In
// these tests nothing else is due: whoever waits for something else waits too long.
func (w *pair) until(limit time.Duration, ok func() bool) bool {
	for end := w.now + limit; w.now < end; w.advance(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return ok()
}

// soon is enough for one look at the budget, and what follows from it.
const soon = memoryEvery + 10*time.Millisecond

// Memory that one client has released and told nobody of lets another socket
// receive: the shell is asked to collect it, and the port is clear afterwards.
func TestStarvedSocketAsksForOthersReleases(t *testing.T) {
	w := newPair(t)
	w.b.cfg.Budget = &Budget{Limit: 4000}
	idle, hungry := bindBox(t, w.b, 4000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4001, 1<<20, SocketOptions{})
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	toIdle, toHungry := mustOpen(t, a.s, idle.s.Addr(), nil), mustOpen(t, a.s, hungry.s.Addr(), nil)
	post := func(d *Dest, n int) {
		if err := a.s.Post(w.now, d, wire.One(make([]byte, n)), 0, 0, Reported, nil); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	post(toIdle, 3700)
	w.advance(soon)
	takeCollect(w.b) // which is asked for while credits are withheld
	if len(idle.wanted) > 0 {
		t.Fatal("room is wanted while there is some")
	}
	post(toHungry, 1000)
	if len(hungry.got) != 0 || !hungry.s.Info().Congested {
		t.Fatalf("1,000 bytes were placed beside 3,700 of 4,000: %+v", hungry.s.Info())
	}
	if _, ordered := w.b.End(); !ordered || !takeCollect(w.b) || takeCollect(w.b) {
		t.Error("the shell was not asked, once, for what clients released")
	}
	if !slices.Equal(hungry.wanted, []bool{true}) || len(idle.wanted) > 0 {
		t.Errorf("wanted room: the hungry one was told %v, the other %v; want true once, and nothing", hungry.wanted, idle.wanted)
	}
	w.advance(soon)
	if !takeCollect(w.b) {
		t.Error("nobody asks again while there is no memory")
	}
	idle.read(w.now, 1) // collected: it was released long ago
	if !w.until(soon, func() bool { return len(hungry.got) == 1 }) {
		t.Fatalf("what was refused has not come, although there is memory: %+v", hungry.s.Info())
	}
	w.advance(soon)
	if hungry.s.Info().Congested || !slices.Equal(hungry.wanted, []bool{true, false}) || takeCollect(w.b) {
		t.Errorf("it goes on wanting room: %+v, %v", hungry.s.Info(), hungry.wanted)
	}
	hungry.read(w.now, 1)
	w.advance(50 * time.Millisecond)
	if w.b.memory()+w.a.memory() != 0 || w.a.recvWaiters != nil && len(w.a.recvWaiters)+len(w.b.recvWaiters) > 0 {
		t.Error("accounts are not empty")
	}
}

// What clients have released is asked for while credits are withheld, though no socket was refused
// anything: a peer that has none left would be told of no more.
func TestWithheldCreditsAskForReleases(t *testing.T) {
	w := newPair(t)
	w.b.cfg.Budget = &Budget{Limit: 4000}
	idle, a := bindBox(t, w.b, 4000, 1<<20, SocketOptions{}), bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	if err := a.s.Post(w.now, mustOpen(t, a.s, idle.s.Addr(), nil), wire.One(make([]byte, 3700)), 0, 0, Reported, nil); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.advance(time.Second)
	if len(w.b.recvWaiters) > 0 || !takeCollect(w.b) {
		t.Errorf("%d sockets wait, and with %d of 4,000 bytes in use nobody asks for what clients released", len(w.b.recvWaiters), w.b.memory())
	}
}

// A sink whose memory cannot be paid for starves: with others' memory it goes on, although
// its client reads nothing of what it has. At this very address an accepted datagram ends.
func TestSinkThatLacksMemory(t *testing.T) {
	for _, local := range []bool{false, true} {
		w := newPair(t)
		from := w.a
		if local {
			from = w.b
		}
		a, b := bindBox(t, from, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
		d := mustOpen(t, a.s, b.s.Addr(), nil)
		post := func(tag uint64) {
			if err := a.s.Post(w.now, d, wire.One(make([]byte, 100)), 0, tag, Reported, nil); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		post(1)
		b.lacks = true
		post(2)
		if len(b.got) != 1 || !b.s.Info().Congested || len(w.b.recvWaiters) != 1 {
			t.Fatalf("local %v: %d placed, %+v", local, len(b.got), b.s.Info())
		}
		if needs := w.b.recvWaiters[0].recvNeeds; needs != 100+itemOverhead {
			t.Errorf("local %v: %d bytes are waited for, for 100 bytes of payload", local, needs)
		}
		if _, ordered := w.b.End(); !ordered || !takeCollect(w.b) {
			t.Errorf("local %v: the shell was not asked for what clients released", local)
		}
		b.lacks = false
		if !w.until(soon, func() bool { return !b.s.Info().Congested }) || len(w.b.recvWaiters) > 0 {
			t.Fatalf("local %v: congested although there is memory and nobody has read", local)
		}
		w.advance(soon)
		if local {
			want(t, "outcomes", a.done, []string{"0: 1+1 delivered", "0: 2+1 failed"})
			continue
		}
		if len(b.got) != 2 {
			t.Errorf("%d placed", len(b.got))
		}
		want(t, "outcomes", a.done, []string{"0: 1+1 delivered", "0: 2+1 delivered"})
	}
}

// What a reader that stopped holds for ever does not stop those whose datagrams
// fit beside it, even if that is nine tenths of all.
func TestStarvedSocketsGoOnBesideAStoppedReader(t *testing.T) {
	w := newPair(t)
	w.b.cfg.Budget = &Budget{Limit: 4000}
	stopped, other := bindBox(t, w.b, 4000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4001, 1<<20, SocketOptions{})
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	toStopped, toOther := mustOpen(t, a.s, stopped.s.Addr(), nil), mustOpen(t, a.s, other.s.Addr(), nil)
	for range 2 {
		if err := a.s.Post(w.now, toStopped, wire.One(make([]byte, 1800)), 0, 0, Reported, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		if err := a.s.Post(w.now, toOther, wire.One(make([]byte, 100)), 0, 0, Reported, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	n := 0
	if !w.until(10*soon, func() bool {
		if len(other.got) > 0 {
			n += len(other.read(w.now, 1))
		}
		return n == 4
	}) {
		t.Fatalf("%d of 4 datagrams came beside a reader that holds %d of 4000 bytes", n, stopped.s.Info().RecvMem)
	}
}

// A send that the node's memory has no room for waits, whether it is posted,
// offered or waits to be accepted, and goes on when another engine of the node
// gives memory back.
func TestSendsWaitForMemory(t *testing.T) {
	for _, how := range []string{"post", "send", "wait"} {
		t.Run(how, func(t *testing.T) {
			w := newPair(t)
			cfg := DefaultConfig()
			cfg.Budget = &Budget{Limit: 8000}
			w.a.cfg.Budget = cfg.Budget // another address of the same node
			e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.3"), rand.New(rand.NewSource(3)))
			holder, _ := e.Bind(4000, SocketOptions{})
			if err := holder.Send(w.now, holder.Addr(), make([]byte, 2900), 0, Quiet); err != nil {
				t.Fatal(err)
			}
			e.End()
			r, _ := w.b.Bind(4000, SocketOptions{})
			var a *box
			var s *Socket
			var d *Dest
			if how == "post" {
				a = bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
				s, d = a.s, mustOpen(t, a.s, r.Addr(), nil)
			} else {
				s, _ = w.a.Bind(5000, SocketOptions{})
			}
			try := func() error {
				switch how {
				case "post":
					return s.Post(w.now, d, wire.One(make([]byte, 5500)), 0, 0, Reported, nil)
				case "send":
					return s.Send(w.now, r.Addr(), make([]byte, 5500), 0, Reported)
				}
				queued, err := s.SendWait(w.now, r.Addr(), make([]byte, 5500), 0, Reported, 0, nil)
				if err != nil || !queued {
					t.Fatalf("queued %v, %v", queued, err)
				}
				return rdserr.ErrWouldBlock
			}
			refusal := map[string]error{"post": rdserr.ErrWouldBlock, "send": rdserr.ErrNoMemory, "wait": rdserr.ErrWouldBlock}[how]
			if err := try(); !errors.Is(err, refusal) {
				t.Fatalf("5,500 bytes beside 2,900 of 8,000: %v, want %v", err, refusal)
			}
			s.Events()
			w.advance(3 * soon)
			if ev := s.Events(); ev != 0 {
				t.Fatalf("events %d although there is no memory", ev)
			}
			dg, _ := holder.Queue().Recv()
			dg.Release()
			holder.ReadAll(w.now)
			e.End()
			var ev int
			if !w.until(soon, func() bool { ev |= s.Events(); return ev&EvWritable != 0 }) {
				t.Fatalf("nobody was told that there is memory: events %d", ev)
			}
			if how != "wait" {
				if err := try(); err != nil {
					t.Fatal(err)
				}
			} else if done := s.SendsDone(nil); len(done) != 1 || done[0].Err != nil {
				t.Fatalf("the waiting send ended as %v", done)
			}
			w.advance(soon)
			if r.Info().RecvN != 1 || len(w.a.sendWaiters) != 0 {
				t.Errorf("%d datagrams arrived", r.Info().RecvN)
			}
		})
	}
}

// What could never fit is refused, and waits for nothing.
func TestSendThatNeverFits(t *testing.T) {
	w := newPair(t)
	w.a.cfg.Budget = &Budget{Limit: 4000}
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	d := mustOpen(t, a.s, netip.AddrPortFrom(w.b.Local(), 4000), nil)
	if err := a.s.Admit(d, wire.One(make([]byte, 3001)), Within); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("3,001 bytes of 4,000: %v", err)
	}
	if err := a.s.Admit(d, wire.One(make([]byte, 2800)), Within); err != nil {
		t.Errorf("2,800 bytes of 4,000: %v", err)
	}
	s, _ := w.a.Bind(5001, SocketOptions{})
	if queued, err := s.SendWait(w.now, netip.AddrPortFrom(w.b.Local(), 4000), make([]byte, 3001), 0, Quiet, 0, nil); queued || !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("queued %v, %v", queued, err)
	}
	if len(w.a.sendWaiters) != 0 || takeCollect(w.a) {
		t.Error("somebody waits for what never comes")
	}
}

// Fetching outcomes is what a sender waits for whose outcomes pile up.
func TestFetchedOutcomesMakeWritable(t *testing.T) {
	w := newPair(t)
	w.a.cfg.MaxOutcomes = 4
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	for i := range 4 {
		if err := s.Send(w.now, r.Addr(), nil, uint64(i), Reported); err != nil {
			t.Fatal(err)
		}
	}
	w.advance(50 * time.Millisecond)
	if err := s.Send(w.now, r.Addr(), nil, 4, Reported); err != rdserr.ErrWouldBlock {
		t.Fatalf("with 4 outcomes not fetched of at most 4: %v", err)
	}
	if s.Events()&EvWritable != 0 {
		t.Fatal("writable, and it is not")
	}
	if o := s.Queue().Outcomes(nil); len(o) != 1 || o[0].Count != 4 {
		t.Fatal(o)
	}
	if s.Events()&EvWritable == 0 {
		t.Error("nobody was told that there is room for outcomes")
	}
}

// A socket that closes while it waits for memory leaves no trace, whichever of
// them it is.
func TestStarvedSocketsClose(t *testing.T) {
	for closes := range 3 {
		w := newPair(t)
		w.b.cfg.Budget = &Budget{Limit: 1000}
		var boxes []*box
		a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
		for i := range 3 {
			b := bindBox(t, w.b, uint16(4000+i), 1<<20, SocketOptions{})
			boxes = append(boxes, b)
			d := mustOpen(t, a.s, b.s.Addr(), nil)
			if err := a.s.Post(w.now, d, wire.One(make([]byte, 2000)), uint32(i), 0, Reported, nil); err != nil {
				t.Fatal(err)
			}
		}
		w.run()
		if len(w.b.recvWaiters) != 3 {
			t.Fatalf("%d sockets starve, want 3", len(w.b.recvWaiters))
		}
		boxes[closes].s.Close(w.now)
		if len(w.b.recvWaiters) != 2 {
			t.Errorf("%d sockets starve after one of three closed", len(w.b.recvWaiters))
		}
		w.b.cfg.Budget.Limit = 1 << 20
		w.advance(2 * soon)
		w.advance(50 * time.Millisecond)
		got := ""
		for i, b := range boxes {
			if i != closes {
				got += fmt.Sprint(len(b.got), b.s.Info().Congested, " ")
			}
		}
		if got != "1 false 1 false " || len(w.b.recvWaiters) != 0 {
			t.Errorf("%d closed: placed and congested %s, %d starve", closes, got, len(w.b.recvWaiters))
		}
	}
}

// Each waiting send comes back with what it was given, whatever ends it; once
// nothing waits, what waited takes no memory.
func TestWaitingBatches(t *testing.T) {
	w := newPair(t)
	s, err := w.a.Bind(0, SocketOptions{SndBufBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	r, err := w.b.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3 * idleBatches
	waited := map[int]bool{}
	for i := range n {
		deadline := time.Duration(0)
		if i%3 == 0 {
			deadline = w.now + time.Millisecond
		}
		queued, err := s.SendWait(w.now, r.Addr(), make([]byte, 900), uint64(i), Quiet, deadline, i)
		if err != nil {
			t.Fatal(err)
		}
		waited[i] = queued
	}
	w.now += 2 * time.Millisecond
	w.a.Tick(w.now) // a third of them have waited too long
	for {
		w.run()
		for d, ok := r.Queue().Recv(); ok; d, ok = r.Queue().Recv() {
			d.Release()
		}
		r.ReadAll(w.now)
		for _, d := range s.SendsDone(nil) {
			i := d.Batch.(int)
			if uint64(i) != d.Tag || !waited[i] || (d.Err != nil) != (i%3 == 0) {
				t.Fatalf("send %d (waited: %v) came back as %d: %v", d.Tag, waited[i], i, d.Err)
			}
			delete(waited, i)
		}
		if s.waiting == 0 {
			break
		}
		w.now += time.Second
		w.a.Tick(w.now)
		w.b.Tick(w.now)
	}
	for i, queued := range waited {
		if queued {
			t.Errorf("send %d never came back", i)
		}
	}
	if len(s.batches) > idleBatches {
		t.Errorf("%d places are kept", len(s.batches))
	}
}

// TestSkippedIsRefused: what came while there was no memory to read it into is refused, one by
// one or as a train, and comes again in its order as soon as there may be room; to a port that
// nobody has it is refused as that.
func TestSkippedIsRefused(t *testing.T) {
	w := newPair(t)
	skipped, skips := 0, 3
	w.skip = func(f *transport.Frame) bool {
		if len(f.Payload) < 9000 || skipped == skips {
			return false
		}
		skipped++
		return true
	}
	b, a := bindBox(t, w.b, 4000, 1<<20, SocketOptions{}), bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	d := mustOpen(t, a.s, b.s.Addr(), nil)
	post := func(d *Dest, train wire.Train, tag uint32) {
		t.Helper()
		if err := a.s.Post(w.now, d, train, tag, 0, Reported, nil); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	post(d, wire.One(make([]byte, 9000)), 1)
	post(d, wire.Train{Body: make([]byte, 9000), Count: 3}, 2)
	post(d, wire.One([]byte("small")), 5)
	if skipped == 0 || len(b.got) != 0 || !b.s.Info().Congested {
		t.Fatalf("%d were skipped, %d placed: %+v", skipped, len(b.got), b.s.Info())
	}
	if n := w.b.cfg.Budget.RefusedHeld(); n != uint64(skipped) || w.b.ctr.MemoryRefused < n {
		t.Errorf("%d are counted as refused, %d datagrams, of %d", n, w.b.ctr.MemoryRefused, skipped)
	}
	if !w.until(5*soon, func() bool { return len(b.got) == 3 }) {
		t.Fatalf("%d of 3 have come, %d were skipped: %+v", len(b.got), skipped, b.s.Info())
	}
	for i, want := range []struct{ bytes, count int }{{9000, 1}, {9000, 3}, {5, 1}} {
		if got := b.got[i].train; len(got.Body) != want.bytes || got.Count != want.count {
			t.Errorf("number %d has %d bytes, %d datagrams, want %v", i, len(got.Body), got.Count, want)
		}
	}
	w.advance(50 * time.Millisecond)
	if o := a.s.Info(); o.Undecided != 0 || skipped != skips {
		t.Errorf("%d are undecided, %d were skipped", o.Undecided, skipped)
	}
	skips++
	post(mustOpen(t, a.s, netip.AddrPortFrom(w.b.Local(), 4001), nil), wire.One(make([]byte, 9000)), 6)
	w.advance(50 * time.Millisecond)
	if o := a.s.Info(); o.Undecided != 0 || a.s.Stats.Failed != 1 || skipped != skips {
		t.Errorf("to nobody's port: %+v, %d were skipped", o, skipped)
	}
}

// A socket that lacks more memory than there is does not stand before others that lack little, and
// goes on when there is enough.
func TestLargeNeedStandsBeforeNobody(t *testing.T) {
	const limit, large = 1 << 20, 80_000 // of which a tenth is not enough to have plenty
	b := &Budget{Limit: limit}
	e, now := lone(t, func(c *Config) { c.Budget = b })
	refused := func(port uint16, bytes int) *box {
		x := bindBox(t, e, port, 1<<30, SocketOptions{})
		if v := x.s.place(e.loop, conn.Arrival{Train: wire.One(make([]byte, bytes))}); v != conn.NoRoom || !x.s.congested {
			t.Fatalf("%d bytes without memory: %v", bytes, v)
		}
		return x
	}
	b.held.Store(limit)
	var first, last *box
	first = refused(4000, large)
	small := []*box{refused(4001, 100), refused(4002, 100), refused(4003, 100)}
	last = refused(4004, large)
	e.End()
	now = ticks(e, now, soon)
	b.held.Add(-3 * (100 + itemOverhead))
	now = ticks(e, now, soon)
	for _, x := range small {
		if x.s.congested || x.s.recvWaitAt > 0 {
			t.Errorf("%v waits behind one that lacks %d bytes", x.s.Addr(), first.s.recvNeeds)
		}
	}
	if !first.s.congested || !last.s.congested || len(e.recvWaiters) != 2 {
		t.Errorf("%d sockets wait", len(e.recvWaiters))
	}
	e.holds(t)
	for i := range 2 {
		b.held.Store(limit - large - itemOverhead) // enough for one of them
		now = ticks(e, now, soon)
		if len(e.recvWaiters) != 1-i {
			t.Errorf("with memory for one %d sockets wait", len(e.recvWaiters))
		}
		e.holds(t)
		b.held.Store(limit)
	}
	if first.s.congested || last.s.congested {
		t.Errorf("congested: %v, %v", first.s.congested, last.s.congested)
	}
}
