package rds

import (
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
)

// pair is two engines and perfect links between them, for tests that need no
// faults. Both run at the same virtual time.
type pair struct {
	t    testing.TB
	now  time.Duration
	a, b *Engine
	link map[*conn.Lane]*wireEnd
	skip func(f *transport.Frame) bool // not nil: whether the payload is not kept
}

type wireEnd struct {
	p     *conn.Lane
	gen   uint64
	other *wireEnd
	fr    transport.Framer
	e     *Engine
}

func newPair(t testing.TB) *pair {
	ca, cb := DefaultConfig(), DefaultConfig()
	return &pair{t: t, now: time.Second, a: NewEngine(&ca, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1))),
		b: NewEngine(&cb, netip.MustParseAddr("10.0.0.2"), rand.New(rand.NewSource(2))), link: map[*conn.Lane]*wireEnd{}}
}

// run carries out everything until both engines are quiet.
func (w *pair) run() { w.runReusing(nil) }

// takeActions takes the orders to links alone, into the memory of acts.
func takeActions(e *Engine, acts []conn.Action) []conn.Action {
	acts = append(acts[:0], e.conns.Actions...)
	e.conns.Actions = e.conns.Actions[:0]
	return acts
}

// takeCollect takes the order to collect alone.
func takeCollect(e *Engine) (c bool) {
	c, e.collect = e.collect, false
	return c
}

// taken is what e has ordered, and the changes of a step that has not ended yet.
func taken(e *Engine) (o Orders) {
	e.takeChanges()
	e.Take(&o)
	return o
}

// runReusing is run without an allocation when acts is large enough.
func (w *pair) runReusing(acts []conn.Action) []conn.Action {
	for busy := true; busy; {
		busy = false
		for _, e := range [...]*Engine{w.a, w.b} {
			e.End()
			acts = takeActions(e, acts)
			for _, a := range acts {
				busy = true
				w.act(e, a)
			}
		}
	}
	return acts
}

func (w *pair) act(e *Engine, a conn.Action) {
	other := w.a
	if e == w.a {
		other = w.b
	}
	switch a.Kind {
	case conn.ActDial, conn.ActPoke:
		acc, err := other.Accept(w.now, netip.AddrPortFrom(e.Local(), uint16(40000+a.Lane.Index())))
		if err != nil {
			w.t.Fatal(err)
		}
		if !acc.Link {
			return
		}
		x, y := &wireEnd{p: a.Lane, gen: a.Attempt, e: e}, &wireEnd{p: acc.Lane, gen: acc.Attempt, e: other}
		x.other, y.other = y, x
		x.fr.Max, y.fr.Max = 1<<20, 1<<20
		w.link[a.Lane], w.link[acc.Lane] = x, y
		a.Lane.Connected(w.now, a.Attempt)
	case conn.ActKick:
		x := w.link[a.Lane]
		b := transport.GetBatch()
		for e.Fill(w.now, a.Lane, b) {
			for _, p := range b.Pieces {
				if _, err := x.other.fr.Feed(p, func(f *transport.Frame) error {
					if w.skip != nil && w.skip(f) {
						f = &transport.Frame{Raw: f.Raw, Skipped: len(f.Payload)}
					}
					return x.other.p.Receive(w.now, x.other.gen, f)
				}); err != nil {
					w.t.Fatal(err)
				}
			}
			b.Reset()
			a.Lane.Wrote(w.now)
			x.other.p.ReceivedAll(w.now, x.other.gen)
			x.other.e.End()
			e.End()
		}
		b.Put()
	}
}

func (w *pair) advance(d time.Duration) {
	w.now += d
	w.a.Tick(w.now)
	w.b.Tick(w.now)
	w.run()
}

func TestDatagramArrivesAndIsAcknowledged(t *testing.T) {
	for _, swap := range []bool{false, true} {
		w := newPair(t)
		from, to := w.a, w.b
		if swap {
			from, to = w.b, w.a
		}
		s, _ := from.Bind(0, SocketOptions{})
		r, _ := to.Bind(4000, SocketOptions{})
		if err := s.Send(w.now, r.Addr(), []byte("hello"), 7, Reported); err != nil {
			t.Fatal(err)
		}
		w.run()
		d, ok := r.Queue().Recv()
		if !ok || string(d.Payload) != "hello" || d.Source != s.Addr() {
			t.Fatalf("got %v %q from %v", ok, d.Payload, d.Source)
		}
		w.advance(50 * time.Millisecond)
		if o := s.Queue().Outcomes(nil); len(o) != 1 || o[0].Kind != conn.Delivered || o[0].First != 7 {
			t.Fatalf("outcomes %v", o)
		}
		if s.Info().SendQueued != 0 {
			t.Fatal("the send buffer was not given back")
		}
	}
}

// TestNobodyThereIsDecidedAtOnce: a datagram to a port that nobody has is decided within a round
// trip, also where no outcome was asked for: its memory does not wait for a timer.
func TestNobodyThereIsDecidedAtOnce(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(0, SocketOptions{})
	nobody := netip.AddrPortFrom(w.b.Local(), 4999)
	for round := range 3 {
		for range 5 {
			if err := s.Send(w.now, nobody, make([]byte, 100), 7, Quiet); err != nil {
				t.Fatal(err)
			}
		}
		w.run() // no time passes
		if i := s.Info(); i.Undecided != 0 || i.SendQueued != 0 || s.Stats.Failed != uint64(5*(round+1)) {
			t.Errorf("round %d: %d undecided, %d bytes queued, %d failed", round, i.Undecided, i.SendQueued, s.Stats.Failed)
		}
	}
}

func BenchmarkCore64(b *testing.B) {
	w := newPair(b)
	s, _ := w.a.Bind(0, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	p := make([]byte, 64)
	dst := r.Addr()
	b.ReportAllocs()
	var acts []conn.Action
	for b.Loop() {
		for range 512 {
			if err := s.Send(w.now, dst, p, 0, Quiet); err != nil {
				b.Fatal(err)
			}
		}
		acts = w.runReusing(acts)
		for {
			d, ok := r.Queue().Recv()
			if !ok {
				break
			}
			d.Release()
		}
		r.ReadAll(w.now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/datagram")
}

// TestMessagesAreUsedAgain: a message whose outcome is known is kept for the next sends.
func TestMessagesAreUsedAgain(t *testing.T) {
	w := newPair(t)
	from, err := w.a.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := w.b.Bind(5000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const burst = 10
	kept := 0
	for round := range 3 {
		for i := range burst {
			if err := from.Send(w.now, to.Addr(), []byte{byte(i)}, uint64(i), Reported); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 { // the handshake, and acknowledgements that wait for more
			w.run()
			w.now += 50 * time.Millisecond
			w.a.Tick(w.now)
			w.b.Tick(w.now)
		}
		if n := from.Info().Undecided; n != 0 {
			t.Fatalf("round %d: %d datagrams are undecided", round, n)
		}
		if kept == 0 {
			kept = w.a.conns.Spare // with those of the handshake
		}
		if w.a.conns.Spare != kept || kept < burst {
			t.Errorf("round %d: %d messages are kept, %d after the first", round, w.a.conns.Spare, kept)
		}
	}
}
