package rds

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// A post goes from sink to sink: payload, source, sequence and outcome.
func TestPostToSink(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		w := newMixedPair(t, mixed)
		a, b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
		d := mustOpen(t, a.s, b.s.Addr(), nil)
		var cells [4]uint64
		for i, tr := range []wire.Train{uniform("plain"), uniform("aa", "bb", "cc"), tabled("x", "", "yyy"), tabled("one")} {
			if err := a.s.Post(w.now, d, tr, uint32(i), uint64(10*i), Reported, &cells[i]); err != nil {
				t.Fatal(err)
			}
		}
		if i := a.s.Info(); i.Undecided != 8 || i.SendQueued != 5+6+4+3 || a.s.InFlight() != 8 || i.Stats.Accepted != 8 {
			t.Fatalf("%+v", i)
		}
		w.run()
		messages := map[bool]int{false: 3, true: 8}[mixed] // the first two leave together
		if len(b.got) != messages {
			t.Fatalf("mixed %v: %d messages placed, want %d", mixed, len(b.got), messages)
		}
		for i, g := range b.got {
			if g.src != a.s.Addr() || g.lane == nil || g.seq == 0 || i > 0 && g.seq <= b.got[i-1].seq {
				t.Errorf("message %d: %+v", i, g)
			}
		}
		split := uint64(0)
		if mixed {
			split = conn.CellSplit
		}
		for i, c := range cells {
			g := b.got[0]
			switch {
			case mixed && (i == 1 || i == 2):
				if c != split {
					t.Errorf("cell %d is %#x, want %#x", i, c, split)
				}
				continue
			case mixed && i == 3:
				g = b.got[7]
			case !mixed:
				g = b.got[max(i-1, 0)]
			}
			if c != uint64(g.lane.Index())<<conn.CellLane|g.seq {
				t.Errorf("cell %d is %#x, it was sent on lane %d as %d", i, c, g.lane.Index(), g.seq)
			}
		}
		if i := b.s.Info(); i.RecvN != 8 || i.RecvQueued != 18 || i.RecvMem != b.used {
			t.Fatalf("%+v, the box has %d bytes", i, b.used)
		}
		var each []int
		b.s.EachQueued(func(src netip.AddrPort, n int) bool { each = append(each, n); return true })
		if c := b.s.Culprits(5); !slices.Equal(each, []int{5, 2, 2, 2, 1, 0, 3, 3}) || len(c) != 1 || c[0] != (Culprit{a.s.Addr(), 8, 18}) {
			t.Errorf("queued %v, culprits %v", each, c)
		}
		want(t, "payloads", b.read(w.now, messages), []string{"plain", "aa", "bb", "cc", "x", "", "yyy", "one"})
		w.advance(50 * time.Millisecond)
		outcomes := []string{"0: 0+1 delivered", "1: 10+3 delivered", "2: 20+3 delivered", "3: 30+1 delivered"}
		if mixed {
			outcomes = []string{"0: 0+1 delivered", "1: 10+1 delivered", "1: 11+1 delivered", "1: 12+1 delivered",
				"2: 20+1 delivered", "2: 21+1 delivered", "2: 22+1 delivered", "3: 30+1 delivered"}
		}
		want(t, "outcomes", a.take(), outcomes)
		if i := b.s.Info(); i.RecvN+i.RecvQueued+i.RecvMem != 0 || i.Stats.Received != 8 || i.Stats.ReceivedBytes != 18 {
			t.Errorf("%+v", i)
		}
		if u := w.a.memory() + w.b.memory(); u != 0 || a.s.InFlight() != 0 || a.s.Info().SendQueued != 0 || a.s.Info().Stats.Delivered != 8 {
			t.Errorf("%d bytes of the budget left, %+v", u, a.s.Info())
		}
		if c := w.a.Counters(); c.SendQueued != 8 || c.OutcomeDelivered != 8 {
			t.Errorf("%d queued, %d delivered", c.SendQueued, c.OutcomeDelivered)
		}
	}
}

// A table that lies is read as far as it goes, by whoever splits or reads it.
func TestLyingTable(t *testing.T) {
	lying := wire.Train{Count: 3, Table: true, Body: []byte{0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 9, 'a', 'b', 'c', 'd'}}
	short := wire.Train{Count: 2, Table: true, Body: []byte{0, 0, 0, 1, 0, 0, 0, 1, 'p', 'q', 'r', 's'}}
	for _, mixed := range []bool{false, true} {
		w := newMixedPair(t, mixed)
		a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
		r, _ := w.b.Bind(4000, SocketOptions{})
		d := mustOpen(t, a.s, r.Addr(), nil)
		for i, tr := range []wire.Train{lying, short, uniform("end")} {
			if err := a.s.Post(w.now, d, tr, uint32(i), uint64(i), Quiet, nil); err != nil {
				t.Fatal(err)
			}
		}
		w.run()
		var got []string
		for {
			dg, ok := r.Queue().Recv()
			if !ok {
				break
			}
			got = append(got, string(dg.Payload))
			dg.Release()
		}
		r.ReadAll(w.now)
		want(t, "payloads", got, []string{"ab", "cd", "", "p", "q", "end"})
		w.advance(50 * time.Millisecond)
		if i, k := a.s.Info(), r.Info(); i.SendQueued+i.Undecided+k.RecvQueued+k.RecvMem+k.RecvN != 0 || w.a.memory()+w.b.memory() != 0 {
			t.Errorf("mixed %v: accounts are not empty: %+v, %+v", mixed, i, k)
		}
	}
}

// A sink without room refuses; what was refused comes in order once Freed has
// made room, also from this very node.
func TestSinkWithoutRoom(t *testing.T) {
	for _, local := range []bool{false, true} {
		w := newPair(t)
		from := w.a
		if local {
			from = w.b
		}
		a, b := bindBox(t, from, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 2*(slot+8+4), SocketOptions{})
		d := mustOpen(t, a.s, b.s.Addr(), "to b")
		var cells [6]uint64
		for i := range cells { // those with a table travel by themselves
			if err := a.s.Post(w.now, d, tabled(fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)), 1, uint64(2*i), Reported, &cells[i]); err != nil {
				t.Fatal(err)
			}
		}
		w.advance(50 * time.Millisecond)
		if len(b.got) != 2 || !b.s.Info().Congested || !d.Congested() {
			t.Fatalf("local %v: %d messages in a box with room for two, %+v", local, len(b.got), b.s.Info())
		}
		want(t, "changes", a.changes, []string{"to b true true"})
		if !local && (cells[1] == 0 || cells[2] != 0 || cells[5] != 0) {
			t.Errorf("cells %x: want the first two alone, the others were refused", cells)
		}
		var got []string
		for range 10 {
			if n := len(b.got); n > 0 {
				got = append(got, b.read(w.now, n)...)
			}
			w.advance(50 * time.Millisecond)
		}
		want(t, "payloads", got, []string{"a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "b5"})
		if n := len(a.done); n != 6 || a.s.InFlight() != 0 || a.s.Info().Held != 0 || b.s.Info().Congested {
			t.Errorf("local %v: outcomes %q, %+v", local, a.done, a.s.Info())
		}
		if local {
			continue
		}
		if c := w.b.Counters(); c.RefuseNoRoom%2 != 0 || c.RefuseNoRoom == 0 {
			t.Errorf("%d datagrams refused; they came in pairs", c.RefuseNoRoom)
		}
	}
}

// An accepted datagram that found no room at this very address holds the send
// buffer that other flows wait for: it goes first once there is room.
func TestHeldDatagramIsNotBehindTheBuffer(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{SndBufBytes: 50})
	b := bindBox(t, w.a, 4000, slot+50, SocketOptions{})
	for i := range 2 {
		if err := s.Send(w.now, b.s.Addr(), make([]byte, 50), uint64(i), Reported); err != nil {
			t.Fatal(err)
		}
	}
	if i := s.Info(); i.Held != 1 || i.Undecided != 1 || i.Waiting != 0 {
		t.Fatalf("%+v, want one held", i)
	}
	queued, err := s.SendWait(w.now, netip.AddrPortFrom(w.b.Local(), 4000), nil, 2, Reported, 0, nil)
	if !queued || err != nil {
		t.Fatal(queued, err)
	}
	b.read(w.now, 1)
	w.advance(50 * time.Millisecond)
	if i := s.Info(); i.Held != 0 || i.Waiting != 0 || len(b.got) != 1 {
		t.Errorf("%+v, %d placed", i, len(b.got))
	}
}

// A post to a congested port waits in the engine, is counted, and goes when the
// port clears; others are not held up.
func TestPostWaitsForItsPort(t *testing.T) {
	w := newPair(t)
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	b, c := bindBox(t, w.b, 4000, 1<<20, SocketOptions{RcvBufBytes: 10}), bindBox(t, w.b, 4001, 1<<20, SocketOptions{})
	toB, toC := mustOpen(t, a.s, b.s.Addr(), "b"), mustOpen(t, a.s, c.s.Addr(), "c")
	post := func(d *Dest, tag uint64, words ...string) {
		t.Helper()
		if err := a.s.Post(w.now, d, uniform(words...), 0, tag, Reported, nil); err != nil {
			t.Fatal(err)
		}
	}
	post(toB, 0, "0123456789", "0123456789")
	w.run()
	want(t, "changes", a.changes, []string{"b true true"})
	post(toB, 2, "x")
	post(toB, 3, "y", "z")
	post(toC, 5, "!")
	w.run()
	if i := a.s.Info(); i.Held != 3 || i.Waiting != 0 || len(c.got) != 1 || len(b.got) != 1 || i.Stats.Accepted != 6 {
		t.Fatalf("%+v, %d and %d messages placed", i, len(b.got), len(c.got))
	}
	b.read(w.now, 1)
	w.advance(50 * time.Millisecond)
	want(t, "payloads", b.read(w.now, len(b.got)), []string{"x", "y", "z"})
	want(t, "changes", a.changes, []string{"b true true", "b false false"})
	w.advance(50 * time.Millisecond)
	want(t, "outcomes", a.take(), []string{"0: 0+2 delivered", "0: 5+1 delivered", "0: 2+1 delivered", "0: 3+2 delivered"})
}

// Cancel and Shutdown give waiting posts their outcome; Close tells nobody, but
// for Drained when the last payload is no longer read.
func TestWaitingPostsEnd(t *testing.T) {
	for _, how := range []string{"cancel", "cancel all", "shutdown", "close"} {
		w := newPair(t)
		a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
		b := bindBox(t, w.b, 4000, 1<<20, SocketOptions{RcvBufBytes: 1})
		d := mustOpen(t, a.s, b.s.Addr(), nil)
		for i := range 4 {
			if err := a.s.Post(w.now, d, uniform("aa", "bb"), 7, uint64(2*i), Quiet, nil); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		w.advance(50 * time.Millisecond)
		want(t, "outcomes", a.take(), []string{"7: 0+2 delivered"})
		var spent []string
		cancelled := []string{"7: 2+2 cancelled", "7: 4+2 cancelled", "7: 6+2 cancelled"}
		switch how {
		case "cancel", "cancel all":
			dst := b.s.Addr()
			if how == "cancel all" {
				dst = netip.AddrPortFrom(dst.Addr(), 0)
			}
			n, begun, err := a.s.Cancel(w.now, dst)
			if n != 6 || begun != 0 || err != nil {
				t.Errorf("%s: %d cancelled, %d begun, %v", how, n, begun, err)
			}
		case "shutdown":
			w.a.Shutdown(w.now)
		case "close":
			cancelled, spent = nil, []string{"7: 2", "7: 2", "7: 2"}
			a.s.Close(w.now)
		}
		want(t, how+", told nobody", a.spent, spent)
		want(t, how, a.take(), cancelled)
		if i := a.s.Info(); i.Held+i.Undecided+i.SendQueued != 0 || i.Stats.Cancelled != 6 || a.drained != map[bool]int{true: 1}[how == "close"] {
			t.Errorf("%s: %+v, drained %d times", how, i, a.drained)
		}
	}
}

// A closed socket's payload is read until the last message has its outcome.
func TestDrained(t *testing.T) {
	w := newPair(t)
	a, b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
	d := mustOpen(t, a.s, b.s.Addr(), nil)
	for i := range 3 {
		if err := a.s.Post(w.now, d, uniform("abc", "def"), 0, uint64(2*i), Quiet, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	a.s.Close(w.now)
	if a.drained != 0 || a.s.InFlight() != 6 || len(a.spent) != 0 {
		t.Fatalf("drained %d times with %d in flight, %q are over", a.drained, a.s.InFlight(), a.spent)
	}
	if err := a.s.Post(w.now, d, uniform("x"), 0, 0, Quiet, nil); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("post on a closed socket: %v", err)
	}
	d.Close()
	w.advance(50 * time.Millisecond)
	if a.drained != 1 || a.s.InFlight() != 0 || len(a.done) != 0 {
		t.Errorf("drained %d times with %d in flight, outcomes %q", a.drained, a.s.InFlight(), a.done)
	}
	want(t, "what is over", a.spent, []string{"0: 2", "0: 2", "0: 2"})
	b.s.Close(w.now)
	b.s.Freed(1, 1, 1) // late: nothing
	if b.drained != 1 || w.b.memory() != 0 {
		t.Errorf("drained %d times, %d bytes of the budget left", b.drained, w.b.memory())
	}
}

// A queue is a sink like any other: its socket posts too, and has the outcomes it asked for.
func TestPostFromQueue(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	b := bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
	d := mustOpen(t, s, b.s.Addr(), nil)
	for i, report := range []Report{Reported, Quiet} {
		if err := s.Post(w.now, d, uniform("aa", "bb"), 0, uint64(10*i), report, nil); err != nil {
			t.Fatal(err)
		}
	}
	w.advance(50 * time.Millisecond)
	want(t, "read", b.read(w.now, len(b.got)), []string{"aa", "bb", "aa", "bb"})
	if o := s.Queue().Outcomes(nil); len(o) != 1 || o[0] != (OutcomeRun{0, 2, conn.Delivered, conn.WhyNone}) {
		t.Errorf("outcomes %v", o)
	}
}

// What a Post can meet, one by one; nothing is taken.
func TestPostErrors(t *testing.T) {
	w := newPair(t)
	w.a.cfg.MaxUndecided = 8
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{SndBufBytes: 100})
	other := bindBox(t, w.a, 5001, 1<<20, SocketOptions{})
	if _, err := a.s.Open(netip.MustParseAddrPort("224.0.0.1:4000"), nil); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("open of a multicast address: %v", err)
	}
	d := mustOpen(t, a.s, netip.MustParseAddrPort("10.0.0.2:4000"), nil)
	ping := mustOpen(t, a.s, netip.MustParseAddrPort("10.0.0.2:0"), nil)
	foreign := mustOpen(t, other.s, netip.MustParseAddrPort("10.0.0.2:4000"), nil)
	closed := mustOpen(t, a.s, netip.MustParseAddrPort("10.0.0.2:4000"), nil)
	closed.Close()
	closed.Close()
	if closed.Addr().IsValid() || closed.Congested() {
		t.Error("a closed destination has an address")
	}
	big := make([]byte, wire.MaxTrainBytes+4)
	for _, c := range []struct {
		name string
		d    *Dest
		t    wire.Train
		err  error
	}{
		{"no datagram", d, wire.Train{}, rdserr.ErrInvalid},
		{"too many datagrams", d, wire.Train{Count: wire.MaxTrain + 1}, rdserr.ErrInvalid},
		{"not divisible", d, wire.Train{Body: big[:7], Count: 2}, rdserr.ErrInvalid},
		{"no room for the table", d, wire.Train{Body: big[:7], Count: 2, Table: true}, rdserr.ErrInvalid},
		{"too large a train", d, wire.Train{Body: big, Count: 4}, rdserr.ErrTooLarge},
		{"too large a datagram", d, wire.Train{Body: big[:101], Count: 1}, rdserr.ErrTooLarge},
		{"too large a datagram behind a table", d, wire.Train{Body: big[:105], Count: 1, Table: true}, rdserr.ErrTooLarge},
		{"too large datagrams", d, wire.Train{Body: big[:202], Count: 2}, rdserr.ErrTooLarge},
		{"a train of pings", ping, wire.Train{Count: 2}, rdserr.ErrInvalid},
		{"another socket's destination", foreign, uniform("x"), rdserr.ErrInvalid},
		{"a closed destination", closed, uniform("x"), rdserr.ErrInvalid},
	} {
		if err := a.s.Post(w.now, c.d, c.t, 0, 0, Quiet, nil); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
	w.a.cfg.Budget.Limit = 10
	if err := a.s.Post(w.now, d, uniform("0123456789!"), 0, 0, Quiet, nil); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("budget spent: %v", err)
	}
	w.a.cfg.Budget.Limit = 1 << 20
	if i := a.s.Info(); i.Undecided != 0 || i.Stats.Accepted != 0 || a.s.Events() != 0 {
		t.Fatalf("something was taken: %+v", i)
	}

	// The limits that pass.
	post := func(count int) error { return a.s.Post(w.now, d, wire.Train{Count: count}, 0, 0, Reported, nil) }
	if err := post(7); err != nil {
		t.Fatal(err)
	}
	if err := post(4); err != nil { // the one that passes the limit is the last
		t.Fatal(err)
	}
	if err := post(1); err != rdserr.ErrWouldBlock {
		t.Fatalf("too many undecided: %v", err)
	}
	w.advance(50 * time.Millisecond)
	if ev := a.s.Events(); ev&EvWritable == 0 {
		t.Errorf("events %b after all was decided, want EvWritable", ev)
	}
	if err := a.s.Post(w.now, d, wire.Train{Body: big[:100], Count: 1}, 0, 0, Reported, nil); err != nil {
		t.Fatal(err)
	}
	if err := post(1); err != rdserr.ErrWouldBlock {
		t.Fatalf("send buffer full: %v", err)
	}
	w.advance(50 * time.Millisecond)
	if ev := a.s.Events(); ev&EvWritable == 0 {
		t.Errorf("events %b after the buffer was freed, want EvWritable", ev)
	}
}

// Buffer offers the client's memory for what Receive would offer to its sink,
// and for nothing else.
func TestBuffer(t *testing.T) {
	w := newPair(t)
	a, b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
	w.b.Bind(4001, SocketOptions{})
	b.reserve = buf.Get(100)
	defer b.reserve.Release()
	d := mustOpen(t, a.s, b.s.Addr(), nil)
	if err := a.s.Post(w.now, d, uniform("x"), 0, 0, Reported, nil); err != nil {
		t.Fatal(err)
	}
	w.run()
	p, seq := b.got[0].lane, b.got[0].seq
	header := func(f func(h *wire.Header)) []byte {
		h := wire.Header{Seq: seq + 1, Len: 100, SPort: 5000, DPort: 4000}
		f(&h)
		raw := h.Append(nil)
		wire.SetChecksum(raw)
		return raw
	}
	good := header(func(*wire.Header) {})
	if w.b.Buffer(p, p.Attempt(), good, 100) != b.reserve || b.asked != 1 {
		t.Fatal("no memory for the next datagram")
	}
	bad := slices.Clone(good)
	bad[31] ^= 1
	for name, raw := range map[string][]byte{
		"wrong checksum":     bad,
		"a duplicate":        header(func(h *wire.Header) { h.Seq = seq; h.Flags = wire.FlagRetransmitted }),
		"no such port":       header(func(h *wire.Header) { h.DPort = 4002 }),
		"a socket without":   header(func(h *wire.Header) { h.DPort = 4001 }),
		"a control message":  header(func(h *wire.Header) { h.Flags = wire.FlagControl }),
		"a congestion map":   header(func(h *wire.Header) { h.Flags = wire.FlagCongBitmap }),
		"less than a header": good[:47],
	} {
		if w.b.Buffer(p, p.Attempt(), raw, 100) != nil {
			t.Errorf("%s: memory was offered", name)
		}
	}
	if w.b.Buffer(p, p.Attempt()+1, good, 100) != nil {
		t.Error("memory was offered to a link that is gone")
	}
	b.reserve = nil
	if w.b.Buffer(p, p.Attempt(), good, 100) != nil || b.asked != 2 {
		t.Error("memory out of nowhere")
	}
}

// Nothing is allocated for a post, on either side.
func TestPostDoesNotAllocate(t *testing.T) {
	w := newPair(t)
	a, b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
	q := &quiet{}
	a.s.sink, b.s.sink = q, q
	d := mustOpen(t, a.s, b.s.Addr(), nil)
	body := make([]byte, 64*64)
	var cell uint64
	var acts []conn.Action
	step := func() {
		for range 8 {
			if err := a.s.Post(w.now, d, wire.Train{Body: body, Count: 64}, 0, 0, Reported, &cell); err != nil {
				t.Fatal(err)
			}
		}
		acts = w.runReusing(acts)
		b.s.Freed(8*len(body), 8*len(body), 8*64)
		b.s.ReadAll(w.now)
	}
	for range 10 {
		step()
	}
	// Eight posts: fewer are of the test's batches, which a pool keeps, but not
	// for ever under the race detector.
	if n := testing.AllocsPerRun(100, step); n >= 8 {
		t.Errorf("%v allocations for 512 datagrams", n)
	}
	if a.s.InFlight() != 0 || q.done == 0 || q.done != q.placed {
		t.Errorf("%d in flight, %d placed, %d done", a.s.InFlight(), q.placed, q.done)
	}
}

// quiet is a sink that only counts.
type quiet struct{ placed, done int }

func (q *quiet) Place(_ *Peer, a conn.Arrival) (int, bool) {
	q.placed += a.Train.Count
	return len(a.Train.Body), true
}
func (q *quiet) Done(d Decided)                      { q.done += d.Count }
func (q *quiet) Spent(uint32, int)                   {}
func (q *quiet) Drained()                            {}
func (*quiet) WantRoom(bool)                         {}
func (q *quiet) Changed(*Dest, bool)                 {}
func (q *quiet) Each(func(netip.AddrPort, int) bool) {}
