package rdsd

import (
	"context"
	"iter"
	"net/netip"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// TraceFilter chooses the datagrams of a trace. Of an address and port the parts that are
// not set are any. The same filter chooses the same datagrams at both nodes.
type TraceFilter struct {
	Source, Destination netip.AddrPort
	Either              []netip.AddrPort // each fits the source or the destination; at most 4
	Every               uint64           // of the messages, those whose sequence is a multiple of this; 0 and 1: all
}

// TraceReport is what a daemon has to tell of a trace at a time. The first has no events.
type TraceReport struct {
	Clock          string       `json:"clock"` // daemons that say the same have the same clock
	LocalAddresses []netip.Addr `json:"local_addresses"`
	Events         []TraceEvent `json:"events"`
	Dropped        uint64       `json:"dropped"` // events so far that found no room
}

// TraceStage is what an event of a trace tells.
type TraceStage string

// Stages. The sender's node tells the first four, the receiver's the others.
const (
	TraceUnknown     TraceStage = ""             // of a newer daemon
	TraceLeft        TraceStage = "left"         // given to the link; again with the same sequence: sent again
	TraceRefused     TraceStage = "refused"      // the receiver had no room: it will be sent with another sequence
	TraceDone        TraceStage = "done"         // has its outcome
	TraceNotAccepted TraceStage = "not-accepted" // a send that waited ended without being accepted
	TracePlaced      TraceStage = "placed"       // where its reader finds it
	TraceNotPlaced   TraceStage = "not-placed"   // for the reason
	TraceRead        TraceStage = "read"         // put into the reader's stream, or released by a reader with rings
	TraceDropped     TraceStage = "dropped"      // its socket was closed before it was read
)

var traceStageWords = []TraceStage{TraceUnknown, TraceLeft, TraceRefused, TraceDone, TraceNotAccepted, TracePlaced, TraceNotPlaced, TraceRead, TraceDropped}

// TraceOutcome is how an accepted datagram ended, as OutcomeKind says it.
type TraceOutcome string

// Outcomes in traces.
const (
	TraceNoOutcome TraceOutcome = ""
	TraceDelivered TraceOutcome = "delivered"
	TraceCancelled TraceOutcome = "cancelled"
	TraceFailed    TraceOutcome = "failed"
	TraceLost      TraceOutcome = "unknown" // nobody can say
)

var traceOutcomeWords = []TraceOutcome{TraceNoOutcome, TraceDelivered, TraceCancelled, TraceFailed, TraceLost}

// TraceEvent is one stage of one datagram. Source, Destination, Incarnation, Lane, Here and
// Seq name it at both nodes. Times are of the wall clock of the daemon that tells them; the
// zero time is not known.
type TraceEvent struct {
	Stage       TraceStage     `json:"stage"`
	Time        time.Time      `json:"time"`
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Lane        uint32         `json:"lane"`
	Here        bool           `json:"here"` // it stayed at this address: no lane, and Seq counts those
	Seq         uint64         `json:"seq"`  // 0: it never had one
	Incarnation uint64         `json:"incarnation"`
	Datagrams   uint32         `json:"datagrams"` // that the message carries
	Member      uint32         `json:"member"`    // of them, which one this is, from 0
	Bytes       uint64         `json:"bytes"`     // payload of the message
	Posted      time.Time      `json:"posted,omitzero"`
	Accepted    time.Time      `json:"accepted,omitzero"`
	Received    time.Time      `json:"received,omitzero"`
	Outcome     TraceOutcome   `json:"outcome,omitempty"` // of TraceDone
	Reason      string         `json:"reason,omitempty"`  // of what did not go well
}

// Trace reports the stages of datagrams that f fits, from the moment it returns until ctx
// ends or the loop is left, for administrators. A failure, such as a daemon that stops
// (ErrShutdown) or has too many traces (ErrTooMany), is the last element. Whoever reads
// too slowly misses events, which are counted; nothing waits for him. Ranging over it works
// once; if that never happens, the trace lasts until ctx ends.
func (a *Admin) Trace(ctx context.Context, f TraceFilter) iter.Seq2[TraceReport, error] {
	req := &rdsdv1.TraceRequest{}
	req.SetSource(traceEndpoint(f.Source))
	req.SetDestination(traceEndpoint(f.Destination))
	var either []*rdsdv1.Endpoint
	for _, e := range f.Either {
		either = append(either, traceEndpoint(e))
	}
	req.SetEither(either)
	req.SetEvery(f.Every)
	return watch(ctx, "trace", a.pb.Trace, req, traceFromProto)
}

// traceEndpoint is an endpoint of which parts may be missing.
func traceEndpoint(ep netip.AddrPort) *rdsdv1.Endpoint {
	return rdsdv1.Endpoint_builder{Address: ep.Addr().AsSlice(), Port: uint32(ep.Port())}.Build()
}

func traceFromProto(m *rdsdv1.TraceReport) TraceReport {
	return TraceReport{
		Clock: m.GetStart().GetClock(), LocalAddresses: all(m.GetStart().GetLocalAddress(), addrFromProto),
		Events: all(m.GetEvent(), traceEventFromProto), Dropped: m.GetDropped(),
	}
}

func traceEventFromProto(m *rdsdv1.TraceEvent) TraceEvent {
	return TraceEvent{
		Stage: wordOf(traceStageWords, m.GetStage()), Time: wallTime(m.GetUnixNs()),
		Source: endpointFromProto(m.GetSource()), Destination: endpointFromProto(m.GetDestination()),
		Lane: m.GetLane(), Here: m.GetHere(), Seq: m.GetSequence(), Incarnation: m.GetIncarnation(),
		Datagrams: m.GetDatagrams(), Member: m.GetMember(), Bytes: m.GetBytes(),
		Posted: wallTime(m.GetPostedUnixNs()), Accepted: wallTime(m.GetAcceptedUnixNs()), Received: wallTime(m.GetReceivedUnixNs()),
		Outcome: wordOf(traceOutcomeWords, m.GetOutcome()), Reason: m.GetReason(),
	}
}

// wallTime is the zero time for 0.
func wallTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
