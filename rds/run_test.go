package rds

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// Runs of any cut carry what single calls would: the same bytes, lengths,
// sources and order, and the accounts are empty in the end.
func TestRunsAreWhatSingleCallsAre(t *testing.T) {
	t.Run("trains", func(t *testing.T) { runsAreWhatSingleCallsAre(t, true) })
	t.Run("a peer without trains", func(t *testing.T) { runsAreWhatSingleCallsAre(t, false) })
}

func runsAreWhatSingleCallsAre(t *testing.T, trains bool) {
	w := newPair(t)
	w.b.cfg.Conn.Trains = trains
	rng := rand.New(rand.NewSource(3))
	r, _ := w.b.Bind(4000, SocketOptions{})
	var from []*Socket
	for range 3 {
		s, _ := w.a.Bind(0, SocketOptions{})
		from = append(from, s)
	}
	type sent struct {
		src     netip.AddrPort
		payload []byte
	}
	var want []sent
	for range 200 {
		s := from[rng.Intn(len(from))]
		var payload []byte
		var lengths []uint32
		for range 1 + rng.Intn(30) {
			n := rng.Intn(1 << rng.Intn(13))
			p := make([]byte, n)
			rng.Read(p)
			payload = append(payload, p...)
			lengths = append(lengths, uint32(n))
			want = append(want, sent{s.Addr(), p})
		}
		tag := uint64(s.Stats.Accepted)
		if n := s.SendRun(w.now, r.Addr(), payload, lengths, tag, Reported); n != len(lengths) {
			t.Fatalf("%d of %d accepted", n, len(lengths))
		}
		w.run()
		for k := 1 + rng.Intn(20); r.Queue().n > 0; k = 1 + rng.Intn(20) {
			var run Run
			r.Queue().RecvRun(&run, k, 1+rng.Intn(20000))
			r.ReadAll(w.now)
			var all []byte
			for _, s := range run.Spans {
				all = append(all, s.Payload...)
			}
			if run.Len() == 0 || run.Len() > k || len(all) != run.Bytes {
				t.Fatalf("a run of %d datagrams, %d and %d bytes; at most %d were asked for", run.Len(), len(all), run.Bytes, k)
			}
			for i, n := range run.Lengths {
				if src := run.Sources[run.Index[i]]; src != want[0].src || !bytes.Equal(all[:n], want[0].payload) {
					t.Fatalf("%d bytes from %v, want %d from %v", n, src, len(want[0].payload), want[0].src)
				}
				all, want = all[n:], want[1:]
			}
			run.Release()
		}
	}
	w.advance(50 * time.Millisecond)
	for _, s := range from {
		next := uint64(0)
		for _, o := range s.Queue().Outcomes(nil) {
			if o.Kind != conn.Delivered || o.First != next {
				t.Fatalf("outcome %+v, want delivered from %d on", o, next)
			}
			next += uint64(o.Count)
		}
		if next != s.Stats.Accepted || s.used != 0 || s.undecided != 0 {
			t.Errorf("%d outcomes for %d accepted, %d bytes and %d datagrams undecided", next, s.Stats.Accepted, s.used, s.undecided)
		}
	}
	if len(want) != 0 || r.mem != 0 || w.a.memory()+w.b.memory() != 0 {
		t.Errorf("%d datagrams missing, %d bytes queued, budgets %d and %d", len(want), r.mem, w.a.memory(), w.b.memory())
	}
}

// TestOutcomesAreOneRun holds that outcomes are one run only where their tags go on and they are the same.
func TestOutcomesAreOneRun(t *testing.T) {
	is := Decided{Report: Reported, Tag: 10, Count: 3, Outcome: conn.Delivered}
	for what, c := range map[string]struct {
		next Decided
		runs int
	}{
		"the next tags":      {Decided{Report: Reported, Tag: 13, Count: 2, Outcome: conn.Delivered}, 1},
		"a tag is left out":  {Decided{Report: Reported, Tag: 14, Count: 2, Outcome: conn.Delivered}, 2},
		"the tags again":     {Decided{Report: Reported, Tag: 10, Count: 3, Outcome: conn.Delivered}, 2},
		"another outcome":    {Decided{Report: Reported, Tag: 13, Count: 2, Outcome: conn.Cancelled}, 2},
		"another reason":     {Decided{Report: Reported, Tag: 13, Count: 2, Outcome: conn.Delivered, Why: 1}, 2},
		"nobody wants it":    {Decided{Report: Quiet, Tag: 13, Count: 2, Outcome: conn.Delivered}, 1},
		"both are different": {Decided{Report: Reported, Tag: 13, Count: 2, Outcome: conn.Cancelled, Why: 1}, 2},
	} {
		w := newPair(t)
		s, _ := w.a.Bind(0, SocketOptions{})
		q := s.Queue()
		q.Done(is)
		q.Done(c.next)
		got := q.Outcomes(nil)
		n := 0
		for _, o := range got {
			n += int(o.Count)
		}
		want := is.Count + c.next.Count
		if c.next.Report == Quiet {
			want = is.Count
		}
		if len(got) != c.runs || n != want || got[0].Kind != is.Outcome || got[0].First != is.Tag {
			t.Errorf("%s: %+v, want %d runs of %d outcomes", what, got, c.runs, want)
		}
	}
}

// SendRun accepts exactly the prefix that Send would.
func TestSendRunStopsWhereSendWould(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(0, SocketOptions{SndBufBytes: 1000})
	dst := netip.AddrPortFrom(w.b.Local(), 4000)
	lengths := []uint32{400, 400, 400, 400}
	if n := s.SendRun(w.now, dst, make([]byte, 1600), lengths, 0, Quiet); n != 3 { // the one that passes the buffer is the last
		t.Errorf("%d accepted into 1000 bytes, want 3", n)
	}
	if n := s.SendRun(w.now, dst, make([]byte, 400), lengths[:1], 0, Quiet); n != 0 {
		t.Errorf("%d accepted into a full buffer", n)
	}
	exact, _ := w.a.Bind(0, SocketOptions{SndBufBytes: 800})
	if n := exact.SendRun(w.now, dst, make([]byte, 1600), lengths, 0, Quiet); n != 2 {
		t.Errorf("%d accepted, want the 2 that fill 800 bytes", n)
	}
	k, _ := w.a.Bind(0, SocketOptions{SndBufBytes: 1000})
	if n := k.SendRun(w.now, dst, make([]byte, 1101), []uint32{100, 1001}, 0, Quiet); n != 1 {
		t.Errorf("%d accepted, want 1: the second is larger than the send buffer", n)
	}
	pe, _ := w.a.Peer(dst.Addr())
	pe.cmap.Set(4000, true)
	if n := k.SendRun(w.now, dst, make([]byte, 1), []uint32{1}, 0, Quiet); n != 0 {
		t.Errorf("%d accepted for a congested port", n)
	}
}

// A run names the source of each datagram, single or of a train, though several peers
// send from ports of the same number. Of eight sources it names each once.
func TestRunsNameTheirSources(t *testing.T) {
	e, now := lone(t, nil)
	s, err := e.Bind(4000, SocketOptions{RcvBufBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var peers []*Peer
	for i := range byte(4) {
		pe, err := e.Peer(netip.AddrFrom4([4]byte{10, 0, 0, 2 + i}))
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, pe)
	}
	rng := rand.New(rand.NewSource(5))
	var want []netip.AddrPort
	for range 2000 {
		pe, port := peers[rng.Intn(len(peers))], uint16(5000+rng.Intn(2))
		n := 1
		if rng.Intn(2) == 0 {
			n = 1 + rng.Intn(3)
		}
		train := wire.Train{Body: bytes.Repeat([]byte{byte(pe.addr.As4()[3]), byte(port)}, n), Count: n}
		if v := s.place(pe, conn.Arrival{Seq: 1, SPort: port, Train: train}); v != conn.Placed {
			t.Fatalf("not placed: %v", v)
		}
		for range n {
			want = append(want, netip.AddrPortFrom(pe.addr, port))
		}
	}
	var r Run
	for len(want) > 0 {
		s.Queue().RecvRun(&r, 1+rng.Intn(60), 1<<20)
		s.ReadAll(now)
		if most := r.Len(); len(r.Sources) > most || len(r.Sources) > 8 {
			t.Errorf("%d sources of %d datagrams, and 8 there are", len(r.Sources), most)
		}
		var all []byte
		for _, span := range r.Spans {
			all = append(all, span.Payload...)
		}
		for i, n := range r.Lengths {
			src := r.Sources[r.Index[i]]
			if n != 2 || src != want[0] || all[0] != src.Addr().As4()[3] || all[1] != byte(src.Port()) {
				t.Fatalf("%d bytes, %v, from %v; want 2 from %v", n, all[:2], src, want[0])
			}
			all, want = all[2:], want[1:]
		}
		r.Release()
	}
}

// TestSpansInOneBuffer: payloads become one span where one lies right behind the other in
// the same buffer, and only there.
func TestSpansInOneBuffer(t *testing.T) {
	mem := make([]byte, 16)
	b, other := &buf.Buf{B: mem}, &buf.Buf{B: make([]byte, 8)}
	for _, x := range []struct {
		what string
		next *buf.Buf
		p    []byte
		one  bool
	}{
		{"right behind", b, mem[8:12], true},
		{"nothing", b, nil, true},
		{"with a gap", b, mem[9:12], false},
		{"before", b, mem[0:4], false},
		{"of another buffer", other, other.B[:4], false},
	} {
		var r Run
		r.span(b, mem[4:8], 1)
		r.span(x.next, x.p, 1)
		if one := len(r.Spans) == 1; one != x.one {
			t.Errorf("%s: %d spans", x.what, len(r.Spans))
		}
	}
	var r Run
	r.span(b, mem[8:16], 1) // to the buffer's end
	r.span(b, mem[0:4], 1)
	if len(r.Spans) != 2 {
		t.Errorf("from its end to its beginning: %d spans", len(r.Spans))
	}
}

// TestSendRunStopsAtEachLimit holds that a run takes as many datagrams as there may be without a
// decision, or with an outcome that nobody has read, as single sends do, and no more.
func TestSendRunStopsAtEachLimit(t *testing.T) {
	for what, limit := range map[string]func(*Config){
		"undecided": func(c *Config) { c.MaxUndecided = 3 },
		"outcomes":  func(c *Config) { c.MaxOutcomes = 5 },
	} {
		w := newPair(t)
		limit(w.a.cfg)
		r, _ := w.b.Bind(4000, SocketOptions{})
		s, _ := w.a.Bind(0, SocketOptions{})
		total := 0
		for range 4 { // what was taken is decided in between: a whole run, before there is an outcome
			total += s.SendRun(w.now, r.Addr(), make([]byte, 5), []uint32{1, 1, 1, 1, 1}, uint64(total), Reported)
			w.run()
			w.advance(50 * time.Millisecond)
		}
		if want := map[string]int{"undecided": 12, "outcomes": 5}[what]; total != want {
			t.Errorf("%s: %d were taken in all, want %d", what, total, want)
		}
	}
}
