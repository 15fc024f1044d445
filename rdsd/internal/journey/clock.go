package journey

import (
	"math"
	"time"
)

// Offset is how far the clock of the second daemon is ahead of the first one's.
type Offset struct {
	Ahead time.Duration `json:"ahead_ns"`
	// Error bounds the estimate on both sides: within it any value fits what was told. While
	// the clocks drift none does, and it is how far the estimate is from some datagram's.
	Error time.Duration `json:"error_ns"`
	// Known is "same" for one clock, "bounded" for an estimate between two bounds, "one-sided"
	// when there is one bound, and that is taken, "drifting" when the bounds contradict one
	// another, "" when nothing is known: 0 is taken.
	Known string `json:"known"`
}

// Offset estimates from causes: no datagram is received before it has left, and none is
// acknowledged before it was placed. With the second clock d ahead, for a datagram from
// the first node to the second,
//
//	d <= received - left        (on its way it took no less than no time)
//	d >= placed - acknowledged  (and its acknowledgement likewise)
//
// and the other way around for the other direction. The narrowest bounds of all datagrams
// count, and the middle of them is the estimate, as NTP's is of one exchange. That holds for
// clocks which go equally fast. If one drifts away from the other by more than the bounds are
// wide, while the trace lasts, the bound of an early datagram contradicts that of a late one.
func (l *Log) Offset() Offset {
	if len(l.Nodes) < 2 || l.Nodes[0].Clock != "" && l.Nodes[0].Clock == l.Nodes[1].Clock {
		return Offset{Known: "same"}
	}
	low, high := time.Duration(math.MinInt64), time.Duration(math.MaxInt64)
	for _, j := range l.byKey {
		if j.sender == j.receiver || !j.begun {
			continue
		}
		if !j.Left.IsZero() && !j.Received.IsZero() {
			if d := j.Received.Sub(j.Left); j.sender == 0 {
				high = min(high, d)
			} else {
				low = max(low, -d)
			}
		}
		if !j.Placed.IsZero() && !j.Acknowledged.IsZero() {
			if d := j.Placed.Sub(j.Acknowledged); j.sender == 0 {
				low = max(low, d)
			} else {
				high = min(high, -d)
			}
		}
	}
	switch {
	case low == math.MinInt64 && high == math.MaxInt64:
		return Offset{}
	case low == math.MinInt64:
		return Offset{Ahead: high, Known: "one-sided"}
	case high == math.MaxInt64:
		return Offset{Ahead: low, Known: "one-sided"}
	}
	o := Offset{Ahead: low + (high-low)/2, Error: (high - low).Abs() / 2, Known: "bounded"}
	if low > high {
		o.Known = "drifting"
	}
	return o
}

// first is a time of a node by the first one's clock.
func (o Offset) first(t time.Time, node int) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-o.Ahead * time.Duration(node))
}

// across is the time from one node's clock to the other's, a at node from and b at node to.
func (o Offset) across(a time.Time, from int, b time.Time, to int) time.Duration {
	return b.Sub(a) - o.Ahead*time.Duration(to-from)
}
