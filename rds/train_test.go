package rds

import (
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Whichever way a queue of trains and single datagrams is read, each datagram
// comes once, whole and in order, and the accounts and the memory are empty in
// the end.
func TestTrainsAreReadAsDatagrams(t *testing.T) {
	before := buf.InUse()
	rng := rand.New(rand.NewSource(5))
	for round := range 60 {
		w := newMixedPair(t, round%4 == 3)
		a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{SndBufBytes: 8 << 20})
		e := []*Engine{w.a, w.b}[round%2]
		r, _ := e.Bind(4000, SocketOptions{RcvBufBytes: 8 << 20})
		d := mustOpen(t, a.s, r.Addr(), nil)
		var want []string
		for range 40 {
			tr := randomTrain(rng)
			if err := a.s.Post(w.now, d, tr, 0, 0, Reported, nil); err != nil {
				t.Fatal(err)
			}
			c := tr.Cut()
			for p, ok := c.Next(); ok; p, ok = c.Next() {
				want = append(want, string(p))
			}
		}
		w.advance(50 * time.Millisecond)
		n := 0
		check := func(p []byte) {
			t.Helper()
			if string(p) != want[n] {
				t.Fatalf("round %d: datagram %d has %d bytes, want %d", round, n, len(p), len(want[n]))
			}
			n++
		}
		var kept []Datagram
		for n < len(want) && (round < 50 || n < len(want)/2) { // the last rounds close the socket in between
			if next, left := r.Queue().Peek(); next != len(want[n]) || left != len(want)-n {
				t.Fatalf("round %d: peek %d of %d, want %d of %d", round, next, left, len(want[n]), len(want)-n)
			}
			queued := n
			r.EachQueued(func(src netip.AddrPort, k int) bool {
				if k != len(want[queued]) || src != a.s.Addr() {
					t.Fatalf("round %d: %d bytes of %v queued as number %d", round, k, src, queued)
				}
				queued++
				return queued < n+200
			})
			if queued != min(len(want), n+200) {
				t.Fatalf("round %d: %d queued, want %d", round, queued, len(want))
			}
			if rng.Intn(2) == 0 {
				for range 1 + rng.Intn(5) {
					if dg, ok := r.Queue().Recv(); ok {
						check(dg.Payload)
						if rng.Intn(2) == 0 {
							kept = append(kept, dg)
						} else {
							dg.Release()
						}
					}
				}
			} else {
				var run Run
				most, bytes := 1+rng.Intn(100), 1+rng.Intn(1<<uint(rng.Intn(17)))
				r.Queue().RecvRun(&run, most, bytes)
				if run.Len() == 0 || run.Len() > most || run.Bytes > bytes && run.Len() > 1 && run.Lengths[0] > 0 && run.Bytes-int(slices.Max(run.Lengths)) > bytes {
					t.Fatalf("round %d: %d datagrams, %d bytes; at most %d, %d were asked for", round, run.Len(), run.Bytes, most, bytes)
				}
				var all []byte
				for _, s := range run.Spans {
					all = append(all, s.Payload...)
				}
				for _, k := range run.Lengths {
					check(all[:k])
					all = all[k:]
				}
				if len(all) != 0 || len(run.Sources) != 1 || run.Sources[0] != a.s.Addr() {
					t.Fatalf("round %d: %d bytes too many, sources %v", round, len(all), run.Sources)
				}
				run.Release()
			}
			r.ReadAll(w.now)
		}
		for _, dg := range kept {
			dg.Release()
		}
		i := r.Info()
		if round >= 50 {
			r.Close(w.now)
			if c := e.Counters(); c.RecvDropDeadSock != uint64(len(want)-n) {
				t.Errorf("round %d: %d datagrams dropped unread, want %d", round, c.RecvDropDeadSock, len(want)-n)
			}
		} else if i.RecvN+i.RecvQueued+i.RecvMem != 0 || i.Stats.Received != uint64(len(want)) {
			t.Errorf("round %d: %+v", round, i)
		}
		if c := e.Counters(); c.RecvQueued != uint64(len(want)) || w.a.memory()+w.b.memory() != 0 {
			t.Errorf("round %d: %d datagrams queued, want %d; budgets %d and %d", round, c.RecvQueued, len(want), w.a.memory(), w.b.memory())
		}
		if st := a.s.Info().Stats; st.Delivered != uint64(len(want)) {
			t.Errorf("round %d: %+v, want %d delivered", round, st, len(want))
		}
	}
	if n := buf.InUse(); n != before {
		t.Errorf("%d bytes of buffers are out, %d before", n, before)
	}
}

// randomTrain draws a train of one of the forms, or a plain datagram.
func randomTrain(rng *rand.Rand) wire.Train {
	word := func(n int) string {
		p := make([]byte, n)
		rng.Read(p)
		return string(p)
	}
	size := rng.Intn(1 << uint(rng.Intn(8)))
	switch rng.Intn(4) {
	case 0:
		return uniform(word(rng.Intn(1 << uint(rng.Intn(17)))))
	case 1:
		var words []string
		for range 1 + rng.Intn(64) {
			words = append(words, word(size))
		}
		return uniform(words...)
	case 2:
		return wire.Train{Count: 1 + rng.Intn(300)} // nothing but empty datagrams
	}
	var words []string
	for range 1 + rng.Intn(64) {
		words = append(words, word(rng.Intn(1+size)))
	}
	return tabled(words...)
}

// SendRun makes trains of what is small, uniform where it can, and leaves large
// datagrams alone; to a peer that takes none it sends single datagrams.
func TestSendRunMakesTrains(t *testing.T) {
	sizes := []uint32{64, 64, 64, 9000, 10, 20, 4096, 4097, 7}
	for _, mixed := range []bool{false, true} {
		w := newMixedPair(t, mixed)
		s, _ := w.a.Bind(0, SocketOptions{SndBufBytes: 4 << 20})
		b := bindBox(t, w.b, 4000, 4<<20, SocketOptions{RcvBufBytes: 4 << 20})
		send := func(sizes []uint32, first uint64) {
			t.Helper()
			n := uint32(0)
			for _, k := range sizes {
				n += k
			}
			if k := s.SendRun(w.now, b.s.Addr(), make([]byte, n), sizes, first, Reported); k != len(sizes) {
				t.Fatalf("%d of %d accepted", k, len(sizes))
			}
			w.advance(50 * time.Millisecond)
		}
		send(sizes[:1], 0) // so that they know each other
		send(sizes, 1)
		var many []uint32
		for range wire.MaxTrain + 5 {
			many = append(many, 16)
		}
		send(many, 10) // what a train takes by its bytes
		for i := range many {
			many[i] = uint32(i & 1)
		}
		send(many, 10+wire.MaxTrain+5)
		var got []string
		for _, g := range b.got {
			got = append(got, fmt.Sprintf("%d %v", g.train.Count, g.train.Table))
		}
		if mixed {
			if len(got) != 10+2*(wire.MaxTrain+5) {
				t.Errorf("%d messages to a peer that takes no trains", len(got))
			}
		} else {
			want(t, "trains", got, []string{"1 false", "3 false", "1 false", "3 true", "1 false", "1 false",
				"3276 false", "825 false", "4096 true", "5 true"})
		}
		if i := b.s.Info(); i.RecvN != 10+2*(wire.MaxTrain+5) {
			t.Errorf("%d datagrams placed", i.RecvN)
		}
		if o := s.Queue().Outcomes(nil); len(o) != 1 || o[0] != (OutcomeRun{0, 10 + 2*(wire.MaxTrain+5), conn.Delivered, conn.WhyNone}) {
			t.Errorf("outcomes %v", o)
		}
	}
}

// A flush waits for every datagram of a train, split or not.
func TestFlushOfTrains(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		w := newMixedPair(t, mixed)
		a, b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
		d := mustOpen(t, a.s, b.s.Addr(), nil)
		if err := a.s.Post(w.now, d, uniform("aa", "bb", "cc"), 0, 0, Quiet, nil); err != nil {
			t.Fatal(err)
		}
		a.s.Flush(1)
		if err := a.s.Post(w.now, d, uniform("dd", "ee"), 0, 0, Quiet, nil); err != nil {
			t.Fatal(err)
		}
		if f := a.s.Flushed(); len(f) != 0 {
			t.Fatalf("flushed %v before anything left", f)
		}
		w.run()
		w.advance(50 * time.Millisecond)
		a.s.Flush(2)
		if f := a.s.Flushed(); !slices.Equal(f, []uint64{1, 2}) {
			t.Errorf("mixed %v: flushed %v", mixed, f)
		}
	}
}

// BenchmarkCore64Train is BenchmarkCore64 with trains of 64 from sink to sink.
func BenchmarkCore64Train(b *testing.B) {
	const count = 64
	w := newPair(b)
	from, to := bindBox(b, w.a, 5000, 1<<20, SocketOptions{}), bindBox(b, w.b, 4000, 1<<20, SocketOptions{})
	q := &quiet{}
	from.s.sink, to.s.sink = q, q
	d := mustOpen(b, from.s, to.s.Addr(), nil)
	tr := wire.Train{Body: make([]byte, count*64), Count: count}
	b.ReportAllocs()
	var acts []conn.Action
	for b.Loop() {
		for range 8 {
			if err := from.s.Post(w.now, d, tr, 0, 0, Quiet, nil); err != nil {
				b.Fatal(err)
			}
		}
		acts = w.runReusing(acts)
		to.s.Freed(8*len(tr.Body), 8*len(tr.Body), 8*count)
		to.s.ReadAll(w.now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/8/count, "ns/datagram")
}

// What is sent in a frame with others finds room one by one if there is none for all: memory that
// a reader who has stopped holds for ever does not stop it, and the order stays.
func TestJoinedFindsRoomApart(t *testing.T) {
	for _, queue := range []bool{false, true} {
		w := newPair(t)
		w.b.cfg.Budget = &Budget{Limit: 4000}
		stopped := bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
		a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
		to, read := netip.AddrPort{}, (func() []string)(nil)
		if queue {
			s, _ := w.b.Bind(4001, SocketOptions{})
			to, read = s.Addr(), func() (got []string) {
				for d, ok := s.Queue().Recv(); ok; d, ok = s.Queue().Recv() {
					got = append(got, string(d.Payload))
					d.Release()
				}
				s.ReadAll(w.now)
				return got
			}
		} else {
			b := bindBox(t, w.b, 4001, 1<<20, SocketOptions{})
			to, read = b.s.Addr(), func() []string { return b.read(w.now, len(b.got)) }
		}
		toStopped, d := mustOpen(t, a.s, stopped.s.Addr(), nil), mustOpen(t, a.s, to, nil)
		for range 2 {
			if err := a.s.Post(w.now, toStopped, wire.One(make([]byte, 1800)), 0, 0, Reported, nil); err != nil {
				t.Fatal(err)
			}
		}
		var sent []string
		for i := range 9 {
			sent = append(sent, strings.Repeat(string(rune('a'+i)), 90+i))
			if err := a.s.Post(w.now, d, uniform(sent[i]), 0, 0, Reported, nil); err != nil {
				t.Fatal(err)
			}
		}
		w.run()
		if c := w.b.Counters(); c.MemoryRefused != 9 || w.a.Counters().SendJoined != 2+9 {
			t.Fatalf("queue %v: %d datagrams left together, and %d were refused for want of memory; want the two before them and these 9, and all 9", queue, w.a.Counters().SendJoined, c.MemoryRefused)
		}
		var got []string
		w.until(10*soon, func() bool {
			got = append(got, read()...)
			return len(got) == len(sent)
		})
		if !slices.Equal(got, sent) {
			t.Errorf("queue %v: %d of %d datagrams came in order beside a reader that holds %d of 4000 bytes", queue, len(got), len(sent), stopped.s.Info().RecvMem)
		}
	}
}

// TestReleasedTwice: a datagram gives back its own share of the memory of its train, and once.
func TestReleasedTwice(t *testing.T) {
	w := newPair(t)
	a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	if err := a.s.Post(w.now, mustOpen(t, a.s, r.Addr(), nil), uniform("first", "other"), 0, 0, Quiet, nil); err != nil {
		t.Fatal(err)
	}
	w.run()
	d, _ := r.Queue().Recv()
	other, _ := r.Queue().Recv()
	if d.buf == nil || d.buf != other.buf {
		t.Fatal("the two have not come in one train")
	}
	d.Release()
	d.Release()
	if d.Payload != nil {
		t.Error("there is still a payload")
	}
	if string(other.Payload) != "other" {
		t.Errorf("the other one is %q", other.Payload)
	}
	other.Release() // panics when the memory has been given back before
	r.ReadAll(w.now)
}
