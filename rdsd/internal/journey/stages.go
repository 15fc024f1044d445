package journey

import (
	"slices"
	"time"
)

// Stage is a stretch of a journey, named for the stage at its end.
type Stage struct {
	Name string
	Is   string // what takes that long
	Of   func(j *Journey, o Offset) (d time.Duration, ok bool)
}

// Stages are the stretches, in their order. The last one is a round trip and contains what
// is between.
var Stages = []Stage{
	{"accepted", "waiting to be accepted: the send buffer, or the port, was full", func(j *Journey, _ Offset) (time.Duration, bool) { return between(j.Posted, j.Accepted) }},
	{"left", "waiting to be sent: other datagrams, credit, a hold, or a link", func(j *Journey, _ Offset) (time.Duration, bool) { return between(j.Accepted, j.Left) }},
	{"received", "TCP and the network, and until the receiving daemon read it", func(j *Journey, o Offset) (time.Duration, bool) {
		if j.Left.IsZero() || j.Received.IsZero() {
			return 0, false
		}
		return o.across(j.Left, j.sender, j.Received, j.receiver), true
	}},
	{"placed", "placing it where its reader finds it", func(j *Journey, _ Offset) (time.Duration, bool) { return between(j.Received, j.Placed) }},
	{"read", "waiting for its reader", func(j *Journey, _ Offset) (time.Duration, bool) { return between(j.Placed, j.Read) }},
	{"acked", "from left to acknowledged, by the sender's clock alone", func(j *Journey, _ Offset) (time.Duration, bool) { return between(j.Left, j.Acknowledged) }},
}

func between(a, b time.Time) (time.Duration, bool) {
	if a.IsZero() || b.IsZero() {
		return 0, false
	}
	return b.Sub(a), true
}

// Negative counts the stretches that, by the times that were told, ended before they began.
// Within a node none does. RECEIVED does while the clocks drift, for then no one difference
// fits all datagrams, and when the one clock of a machine was set between the begins of its
// two traces.
func (l *Log) Negative(o Offset) (n int) {
	for _, s := range Stages {
		for _, j := range l.begun {
			if d, ok := s.Of(j, o); ok && d < 0 {
				n++
			}
		}
	}
	return n
}

// Spent sums up one stage of all journeys.
type Spent struct {
	Stage string        `json:"stage"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	Max   time.Duration `json:"max_ns"`
}

// Sum says for each stage how long it took.
func (l *Log) Sum(o Offset) (sums []Spent) {
	for _, s := range Stages {
		var d []time.Duration
		for _, j := range l.begun {
			if x, ok := s.Of(j, o); ok {
				d = append(d, x)
			}
		}
		sum := Spent{Stage: s.Name, Count: len(d)}
		if len(d) > 0 {
			slices.Sort(d)
			sum.P50, sum.Max = d[(len(d)-1)/2], d[len(d)-1]
		}
		sums = append(sums, sum)
	}
	return sums
}
