package journey

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var (
	near, far = netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("10.0.0.2:4000")
	zero      = time.Unix(1e9, 0).UTC()
)

func at(us int) time.Time { return zero.Add(time.Duration(us) * time.Microsecond) }

func event(stage rdsd.TraceStage, seq uint64, us int) rdsd.TraceEvent {
	return rdsd.TraceEvent{Stage: stage, Time: at(us), Source: near, Destination: far, Seq: seq, Incarnation: 3, Datagrams: 1, Bytes: 10}
}

// two is a log of the nodes of near and far, whose clocks are two.
func two(most int) *Log {
	l := New(most, "a", "b")
	l.Add(0, rdsd.TraceReport{Clock: "x", LocalAddresses: []netip.Addr{near.Addr()}})
	l.Add(1, rdsd.TraceReport{Clock: "y", LocalAddresses: []netip.Addr{far.Addr()}})
	return l
}

// travel tells of a datagram that took 10 µs each way, with the far clock so far ahead.
func travel(l *Log, seq uint64, us, ahead int) {
	left, placed, done, read := event(rdsd.TraceLeft, seq, us), event(rdsd.TracePlaced, seq, us+12+ahead), event(rdsd.TraceDone, seq, us+22), event(rdsd.TraceRead, seq, us+40+ahead)
	left.Posted, left.Accepted, placed.Received, done.Outcome = at(us-5), at(us-4), at(us+10+ahead), rdsd.TraceDelivered
	l.Add(1, rdsd.TraceReport{Events: []rdsd.TraceEvent{placed, read}}) // the far node is heard first
	l.Add(0, rdsd.TraceReport{Events: []rdsd.TraceEvent{left, done}})
}

// TestJourney: what two daemons tell of a datagram comes together whoever is heard first,
// and the clocks are estimated from it, within what it can say.
func TestJourney(t *testing.T) {
	l := two(2)
	travel(l, 1, 100, 5000)
	if l.Enough() || len(l.Journeys()) != 1 || !l.Journeys()[0].Complete {
		t.Fatalf("%+v", l.Journeys())
	}
	travel(l, 2, 200, 5000)
	travel(l, 3, 300, 5000) // one too many
	if !l.Enough() || len(l.Journeys()) != 2 {
		t.Fatalf("%+v", l.Journeys())
	}
	o := l.Offset()
	if o.Known != "bounded" || (o.Ahead-5*time.Millisecond).Abs() > o.Error || o.Error != 10*time.Microsecond {
		t.Errorf("%+v", o)
	}
	var took []time.Duration
	for _, s := range l.Sum(o) {
		took = append(took, s.P50/time.Microsecond)
	}
	for i, want := range []time.Duration{1, 4, 10, 2, 28, 22} {
		if took[i] != want {
			t.Errorf("stages took %v", took)
			break
		}
	}
}

// TestFirstWords: what the far node tells before the near one has said who it is belongs to
// datagrams of the near one all the same, and is not lost if it never says so.
func TestFirstWords(t *testing.T) {
	for _, speaks := range []bool{true, false} {
		l := New(1, "a", "b")
		l.Add(1, rdsd.TraceReport{Clock: "y", LocalAddresses: []netip.Addr{far.Addr()}, Events: []rdsd.TraceEvent{event(rdsd.TracePlaced, 1, 112), event(rdsd.TraceRead, 1, 120)}})
		if l.Enough() || len(l.Journeys()) != 0 {
			t.Fatalf("%+v has begun before its sender's daemon said anything", l.Journeys())
		}
		if speaks {
			done := event(rdsd.TraceDone, 1, 130)
			done.Outcome = rdsd.TraceDelivered
			l.Add(0, rdsd.TraceReport{Clock: "x", LocalAddresses: []netip.Addr{near.Addr()}})
			l.Add(0, rdsd.TraceReport{Events: []rdsd.TraceEvent{event(rdsd.TraceLeft, 1, 100), done}})
		}
		l.Over()
		j := l.Journeys()
		if len(j) != 1 || !j[0].Complete || j[0].Placed != at(112) || j[0].Left.IsZero() == speaks || len(l.Untold(nil)) == 0 != speaks {
			t.Errorf("the near node speaks: %v: %+v", speaks, j)
		}
	}
}

// TestJourneyEnds: how journeys end that are not delivered, what is sent again, and what
// begins at the receiver.
func TestJourneyEnds(t *testing.T) {
	l := two(0)
	refused, failed, given := event(rdsd.TraceRefused, 1, 9), event(rdsd.TraceDone, 2, 9), event(rdsd.TraceNotAccepted, 0, 9)
	failed.Outcome, failed.Reason = rdsd.TraceFailed, "no such port"
	l.Add(0, rdsd.TraceReport{Events: []rdsd.TraceEvent{event(rdsd.TraceLeft, 1, 1), refused, event(rdsd.TraceLeft, 2, 1), event(rdsd.TraceLeft, 2, 5), failed, given}, Dropped: 3})
	l.Add(1, rdsd.TraceReport{Events: []rdsd.TraceEvent{event(rdsd.TracePlaced, 7, 1)}}) // it left before the trace
	var got []string
	for _, j := range l.Journeys() {
		if !j.Complete {
			t.Errorf("%+v is not complete", j)
		}
		got = append(got, j.Outcome+" "+j.Reason)
	}
	if strings.Join(got, ",") != "refused ,failed no such port,not-accepted " || l.Journeys()[1].SentAgain != 1 || l.Dropped() != 3 {
		t.Errorf("%q", got)
	}
	alone := New(0, "b")
	alone.Add(0, rdsd.TraceReport{Clock: "y", LocalAddresses: []netip.Addr{far.Addr()}, Events: []rdsd.TraceEvent{event(rdsd.TracePlaced, 1, 1), event(rdsd.TraceRead, 1, 2)}})
	if j := alone.Journeys(); len(j) != 1 || !j[0].Complete {
		t.Errorf("%+v", j)
	}
}

// TestSpans: a span of the whole and one for each stage, by one clock, none ending before
// it begins, those of a trace with one id.
func TestSpans(t *testing.T) {
	l := two(1)
	travel(l, 1, 100, -700)
	b, err := l.OTLP(l.Offset())
	if err != nil {
		t.Fatal(err)
	}
	var doc otlpDoc
	if err := json.Unmarshal(b, &doc); err != nil || len(doc.ResourceSpans) != 2 {
		t.Fatal(err, string(b))
	}
	n, root, trace := 0, 0, ""
	for _, r := range doc.ResourceSpans {
		for _, s := range r.ScopeSpans[0].Spans {
			n++
			if s.Parent == "" {
				root++
			}
			if trace == "" {
				trace = s.TraceID
			}
			if s.TraceID != trace || len(s.TraceID) != 32 || len(s.SpanID) != 16 || len(s.Start) != len(s.End) || s.End < s.Start {
				t.Errorf("%+v", s)
			}
		}
	}
	if n != 7 || root != 1 {
		t.Errorf("%d spans, %d of the whole", n, root)
	}
}

// world is two nodes whose clocks differ, and datagrams between them.
type world struct {
	ahead time.Duration // of the far clock, when the trace begins
	drift float64       // and how much faster it goes
	back  bool          // datagrams go both ways
	lost  bool          // nothing is acknowledged
	lasts time.Duration
}

// told is what the daemons tell of n datagrams, at random times, on ways that take from 5 to
// 200 µs. No way takes no time.
func (w world) told(r *rand.Rand, n int) *Log {
	l := two(0)
	for seq := uint64(1); seq <= uint64(n); seq++ {
		true0 := time.Duration(seq) * w.lasts / time.Duration(n)
		clock := func(node int, since time.Duration) time.Time {
			if node == 1 {
				since += w.ahead + time.Duration(w.drift*float64(since))
			}
			return zero.Add(since)
		}
		some := func() time.Duration { return 5*time.Microsecond + time.Duration(r.IntN(195))*time.Microsecond }
		src, dst := 0, 1
		ends := [2]netip.AddrPort{near, far}
		if w.back && seq%2 == 0 {
			src, dst = 1, 0
		}
		posted := true0
		left := posted + some()
		received := left + some()
		placed := received + some()
		read := placed + some()
		done := placed + some()
		e := func(stage rdsd.TraceStage, node int, since time.Duration) rdsd.TraceEvent {
			return rdsd.TraceEvent{Stage: stage, Time: clock(node, since), Source: ends[src], Destination: ends[dst], Seq: seq, Incarnation: 3, Datagrams: 1, Bytes: 10}
		}
		out, in, end := e(rdsd.TraceLeft, src, left), e(rdsd.TracePlaced, dst, placed), e(rdsd.TraceDone, src, done)
		out.Posted, out.Accepted, in.Received = clock(src, posted), clock(src, posted+1000), clock(dst, received)
		end.Outcome = rdsd.TraceDelivered
		if w.lost {
			end.Outcome = rdsd.TraceLost
		}
		l.Add(dst, rdsd.TraceReport{Events: []rdsd.TraceEvent{in, e(rdsd.TraceRead, dst, read)}})
		l.Add(src, rdsd.TraceReport{Events: []rdsd.TraceEvent{out, end}})
	}
	return l
}

// TestClocksThatDiffer: whatever the clocks of two nodes say, the truth is within what the
// estimate says of itself, and no stage ends before it begins unless the clocks are told to
// drift.
func TestClocksThatDiffer(t *testing.T) {
	ms, s := time.Millisecond, time.Second
	for _, c := range []struct {
		name  string
		w     world
		known string
		want  bool // that stages end before they begin
	}{
		{"together", world{lasts: s}, "bounded", false},
		{"ahead", world{ahead: 3500 * ms, lasts: s}, "bounded", false},
		{"behind", world{ahead: -7 * s, lasts: s}, "bounded", false},
		{"behind, both ways", world{ahead: -7 * s, lasts: s, back: true}, "bounded", false},
		{"a day behind", world{ahead: -24 * time.Hour, lasts: s, back: true}, "bounded", false},
		{"not acknowledged", world{ahead: 3500 * ms, lasts: s, lost: true}, "one-sided", false},
		{"not acknowledged, both ways", world{ahead: 3500 * ms, lasts: s, lost: true, back: true}, "bounded", false},
		{"a little drift", world{ahead: s, drift: 1e-6, lasts: s}, "bounded", false},
		{"gains", world{ahead: s, drift: 200e-6, lasts: 10 * s}, "drifting", true},
		{"loses, both ways", world{ahead: -s, drift: -200e-6, lasts: 10 * s, back: true}, "drifting", true},
	} {
		for seed := range uint64(50) {
			l := c.w.told(rand.New(rand.NewPCG(seed, 1)), 200)
			o := l.Offset()
			drifted := time.Duration(c.w.drift * float64(c.w.lasts))
			low, high := min(c.w.ahead, c.w.ahead+drifted), max(c.w.ahead, c.w.ahead+drifted)
			margin := o.Error + 1 // it is halved
			if o.Known == "one-sided" {
				margin = 200 * time.Microsecond // the slowest way
			}
			if o.Known != c.known || o.Ahead < low-margin || o.Ahead > high+margin {
				t.Errorf("%s: seed %d: %+v; it is %v to %v", c.name, seed, o, low, high)
			}
			if n := l.Negative(o); (n > 0) != c.want {
				t.Errorf("%s: seed %d: %d stages end before they begin, by %+v", c.name, seed, n, o)
			}
			// Those of one clock never do, and RECEIVED is wrong by no more than it says.
			for _, j := range l.Journeys() {
				for _, stage := range Stages {
					d, ok := stage.Of(j, o)
					if ok == (c.w.lost && stage.Name == "acked") || d < 0 && (stage.Name != "received" || -d > margin) || stage.Name == "received" && d > 200*time.Microsecond+2*margin {
						t.Fatalf("%s: seed %d: %s took %v (%v) by %+v", c.name, seed, stage.Name, d, ok, o)
					}
				}
			}
		}
	}
}

// TestUntold: whose half is missing, and of how many.
func TestUntold(t *testing.T) {
	l := New(0, "a")
	l.Add(0, rdsd.TraceReport{Clock: "x", LocalAddresses: []netip.Addr{near.Addr()}})
	third := netip.MustParseAddrPort("10.0.0.3:9")
	for seq := range uint64(3) {
		l.Add(0, rdsd.TraceReport{Events: []rdsd.TraceEvent{event(rdsd.TraceLeft, seq+1, 1)}})
	}
	in, here, given := event(rdsd.TracePlaced, 1, 9), event(rdsd.TraceDone, 2, 9), event(rdsd.TraceNotAccepted, 0, 9)
	in.Source, in.Destination = third, near
	here.Destination, here.Here = near, true
	given.Destination = third
	l.Add(0, rdsd.TraceReport{Events: []rdsd.TraceEvent{in, here, given}})
	want := []Untold{{far.Addr(), "receiver", rdsd.PeerKernel, 3}, {third.Addr(), "sender", rdsd.PeerUnknown, 1}}
	if got := l.Untold(map[netip.Addr]rdsd.PeerKind{far.Addr(): rdsd.PeerKernel}); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := two(0).Untold(nil); got == nil || len(got) != 0 {
		t.Errorf("%#v", got)
	}
}
