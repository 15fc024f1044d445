package journey

import (
	"encoding/json"
	"net/netip"
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
