package rds

import (
	"math"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// TestRunsAreFullTrains draws runs whose datagrams fill a train to its last byte, or are of the largest
// that goes into one: each train is as long as it may be, and no longer, and what is too
// large goes alone. Payload, lengths and tags go on from one message to the next.
func TestRunsAreFullTrains(t *testing.T) {
	rng, full := rand.New(rand.NewSource(1)), 0
	sizes := []int{0, 1, 4, 12, 28, 60, 124, 252, 508, 1020, 2044, 4092, 4095, trainDatagram, trainDatagram + 1, 5000}
	for range 60 {
		w := newPair(t)
		s, _ := w.a.Bind(0, SocketOptions{})
		dst := netip.AddrPortFrom(w.b.Local(), 4000)
		f, err := s.reach(dst, 0)
		if err != nil {
			t.Fatal(err)
		}
		few := []int{sizes[rng.Intn(len(sizes))], sizes[rng.Intn(len(sizes))]}
		if rng.Intn(2) == 0 {
			few = few[:1]
		}
		lengths, sum := make([]uint32, 1+rng.Intn(200)), 0
		if few[0] < 12 {
			lengths = make([]uint32, wire.MaxTrain+rng.Intn(3)*5000)
		}
		for i := range lengths {
			lengths[i] = uint32(few[rng.Intn(len(few))])
			sum += int(lengths[i])
		}
		payload := make([]byte, sum)
		rng.Read(payload)
		run := sendRun{s: s, f: f, port: 4000, tag: 7}
		run.trains(payload, lengths)
		tag := uint64(7)
		for m := run.head; m != nil; m = m.Link() {
			n, bytes := m.Datagrams(), 0
			for _, l := range lengths[:n] {
				bytes += int(l)
			}
			body := m.Train()
			i := 0
			for c := body.Cut(); c.Left() > 0; i++ {
				if d, _ := c.Next(); len(d) != int(lengths[i]) {
					t.Fatalf("datagram %d has %d bytes, want %d", i, len(d), lengths[i])
				}
			}
			if m.Tag != tag || int(m.Bytes) != bytes || !slices.Equal(body.Body[len(body.Body)-bytes:], payload[:bytes]) {
				t.Fatalf("datagrams from %d on: tag %d, %d bytes of %d", tag, m.Tag, m.Bytes, bytes)
			}
			if n > 1 && (n > wire.MaxTrain || len(body.Body) > wire.MaxTrainBytes || slices.Max(lengths[:n]) > trainDatagram) {
				t.Fatalf("a train of %d datagrams in %d bytes, the largest of %d", n, len(body.Body), slices.Max(lengths[:n]))
			}
			if next := lengths[n:]; len(next) > 0 && next[0] <= trainDatagram && lengths[0] <= trainDatagram {
				if n < wire.MaxTrain && bytes+int(next[0])+(n+1)*wire.TableEntry <= wire.MaxTrainBytes {
					t.Fatalf("%d datagrams of %d bytes, and one of %d would have gone with them", n, bytes, next[0])
				}
			}
			if bytes+n*wire.TableEntry == wire.MaxTrainBytes || n == wire.MaxTrain {
				full++
			}
			payload, lengths, tag = payload[bytes:], lengths[n:], tag+uint64(n)
		}
		if len(lengths) > 0 {
			t.Fatalf("%d datagrams are in no message", len(lengths))
		}
	}
	if full == 0 {
		t.Error("no train was full to its last byte")
	}
}

// TestCreditsNeedATenth: credits are given while more than a tenth of the memory is free.
func TestCreditsNeedATenth(t *testing.T) {
	e, _ := lone(t, func(c *Config) { c.Budget = &Budget{Limit: 1000} })
	for held, may := range map[int64]bool{0: true, 899: true, 900: false, 905: false, 1000: false} {
		e.tally.held = held
		if got := e.mayGrant(); got != may {
			t.Errorf("with %d of 1,000 bytes held credits are given: %v", held, got)
		}
	}
}

// TestOutcomeRunIsBounded: a run of outcomes is as long as it can be counted.
func TestOutcomeRunIsBounded(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(0, SocketOptions{})
	q := s.Queue()
	tag := uint64(0)
	for i, n := range []int{math.MaxUint32 - 2, 1, 1, 1, 5} {
		q.Done(Decided{Report: Reported, Tag: tag, Count: n, Outcome: conn.Delivered})
		tag += uint64(n)
		if want := []int{1, 1, 1, 2, 2}[i]; len(q.outcomes) != want {
			t.Fatalf("%d runs of %d outcomes, want %d", len(q.outcomes), tag, want)
		}
	}
	if o := q.Outcomes(nil); o[0].Count != math.MaxUint32 || o[1].First != math.MaxUint32 || o[1].Count != 6 {
		t.Errorf("%+v", o)
	}
}

// TestLongOutcomesAreNotKept: the memory of a long list of outcomes goes with those who fetch it, that of an
// ordinary one serves the next; both times all are fetched once.
func TestLongOutcomesAreNotKept(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(0, SocketOptions{})
	q := s.Queue()
	for _, n := range []int{10, keptOutcomes + 1, 1} {
		for i := range n {
			q.Done(Decided{Report: Reported, Tag: uint64(2 * i), Count: 1, Outcome: conn.Delivered}) // no run of two
		}
		kept := cap(q.outcomes) <= keptOutcomes
		if o := q.Outcomes(nil); len(o) != n || o[n-1].First != uint64(2*(n-1)) {
			t.Fatalf("%d outcomes of %d", len(o), n)
		}
		if (q.outcomes != nil) != kept || len(q.outcomes) != 0 {
			t.Errorf("after %d outcomes room for %d is kept", n, cap(q.outcomes))
		}
		if o := q.Outcomes(nil); len(o) != 0 {
			t.Errorf("%d of %d outcomes came twice", len(o), n)
		}
	}
}

// TestNobodyWatches: notices that nobody has taken are forgotten with the one who watched.
func TestNobodyWatches(t *testing.T) {
	e, now := lone(t, nil)
	notices := func() int { return len(taken(e).Notices) }
	e.congest(now, 4000)
	if n := notices(); n != 0 {
		t.Errorf("%d notices, and nobody watches", n)
	}
	e.Watch(true)
	e.clear(now, 4000)
	if n := notices(); n != 1 {
		t.Errorf("%d notices of one change", n)
	}
	e.congest(now, 4000)
	e.Watch(false)
	e.clear(now, 4000)
	if n := notices(); n != 0 {
		t.Errorf("%d notices, and nobody watches any more", n)
	}
}

// TestClosedReaderClearsNobody: what a client reads late, of a socket that is closed, says nothing about
// the port, which is another's by now.
func TestClosedReaderClearsNobody(t *testing.T) {
	e, now := lone(t, nil)
	old, _ := e.Bind(4000, SocketOptions{})
	old.mark(now)
	old.Close(now)
	if e.cmap.Congested(4000) || old.Info().Congested || old.SendersWait() {
		t.Fatalf("a port that nobody has is congested: %+v", old.Info())
	}
	s, err := e.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.mark(now)
	old.Freed(10, 10, 1)
	old.ReadAll(now)
	if !e.cmap.Congested(4000) || !s.Info().Congested {
		t.Error("who has closed clears the port of another")
	}
}

// TestRefusedHearsOnce: a socket that was refused a destination hears when that clears, and of no later
// change unless it is refused again; one that wants to hear of all changes hears of each.
func TestRefusedHearsOnce(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := newPair(t)
		s, _ := w.a.Bind(0, SocketOptions{})
		s.SetMonitor(Monitor{Clear: true, Set: all})
		dst := netip.AddrPortFrom(w.b.Local(), 4000)
		turn(t, w, dst, true)
		if err := s.Send(w.now, dst, nil, 1, Quiet); err == nil {
			t.Fatal("not refused")
		}
		turn(t, w, dst, false)
		wantNews(t, "it clears", s, 0, Change{dst, false})
		w.now += time.Second
		turn(t, w, dst, true)
		w.now += time.Second
		turn(t, w, dst, false)
		if all {
			wantNews(t, "and again", s, 0, Change{dst, true}, Change{dst, false})
		} else {
			wantNews(t, "and again", s, 0)
		}
	}
}

// TestPortThatClearsForAMoment: a port that clears and is congested again within one step is not kept for
// the socket that heard of that and asks no more; one that refuses somebody in between is.
func TestPortThatClearsForAMoment(t *testing.T) {
	for _, again := range []bool{false, true} {
		w := newPair(t)
		s, _ := w.a.Bind(0, SocketOptions{})
		s.SetMonitor(Monitor{Clear: true})
		dst := netip.AddrPortFrom(w.b.Local(), 4000)
		turn(t, w, dst, true)
		if err := s.Send(w.now, dst, nil, 1, Quiet); err == nil {
			t.Fatal("not refused")
		}
		pe := w.a.Known(dst.Addr())
		if len(pe.ports) != 1 {
			t.Fatalf("%d ports are kept", len(pe.ports))
		}
		pe.CongestionDelta(w.now, wire.PortState{Port: dst.Port()})
		pe.CongestionDelta(w.now, wire.PortState{Port: dst.Port(), Congested: true})
		if again {
			if err := s.Send(w.now, dst, nil, 1, Quiet); err == nil {
				t.Fatal("not refused")
			}
		}
		w.a.End()
		if n := len(pe.ports); n > 0 != again {
			t.Errorf("refused again %v: %d ports are kept", again, n)
		}
		if again && (pe.blockedPorts != 1 || s.refused != 1) {
			t.Errorf("%d ports are told as blocked, and %d destinations are remembered", pe.blockedPorts, s.refused)
		}
		pe.holds(t)
	}
}
