package service

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

const (
	// traceEvery is how often what a trace has is sent. Nothing on the datagrams' way wakes
	// anybody for it.
	traceEvery = 10 * time.Millisecond
	// traceReport bounds the events of one report, and with it how long the lock of the trace
	// is held against those who note some.
	traceReport = 128
	// maxEither bounds TraceRequest.either, which every message is compared with.
	maxEither = 4
)

// Trace tells the stages of datagrams. It shows who sends to whom and when, to whoever may
// be one of others' users: so it is for administrators, though it changes nothing.
func (a *adminServer) Trace(r *rdsdv1.TraceRequest, stream grpc.ServerStreamingServer[rdsdv1.TraceReport]) error {
	ctx := stream.Context()
	if err := a.front.mayChange(ctx, "Trace"); err != nil {
		return err
	}
	rule, err := traceRule(r)
	if err != nil {
		return err
	}
	t, err := a.front.deps.Host.Trace(rule, quota.User(identityFrom(ctx).UID))
	if err != nil {
		return err
	}
	// With the stream, whether the caller ended it, went away, or the node ends.
	defer t.Close()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	if err := stream.Send(a.traceStart()); err != nil {
		return err
	}
	tick := time.NewTicker(traceEvery)
	defer tick.Stop()
	var events []datagram.TraceEvent
	var told uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.front.deps.Stopping:
			return base.ErrDraining
		case <-tick.C:
		}
		for {
			var dropped uint64
			events, dropped = t.Take(events[:0], traceReport)
			if len(events) == 0 && dropped == told {
				break
			}
			told = dropped
			if err := stream.Send(tracePB(events, dropped)); err != nil {
				return err
			}
		}
	}
}

// traceRule checks a request.
func traceRule(r *rdsdv1.TraceRequest) (rule datagram.TraceRule, err error) {
	if rule.Src, err = traceEnd("source", r.GetSource()); err != nil {
		return rule, err
	}
	if rule.Dst, err = traceEnd("destination", r.GetDestination()); err != nil {
		return rule, err
	}
	if n := len(r.GetEither()); n > maxEither {
		return rule, rdserr.With(rdserr.ErrInvalid, "either has %d endpoints; at most %d are compared", n, maxEither)
	}
	for _, e := range r.GetEither() {
		ep, err := traceEnd("either", e)
		if err != nil {
			return rule, err
		}
		rule.Either = append(rule.Either, ep)
	}
	rule.Every = r.GetEvery()
	return rule, nil
}

// traceEnd reads an endpoint of which parts may be missing.
func traceEnd(field string, e *rdsdv1.Endpoint) (netip.AddrPort, error) {
	addr, err := optionalAddr(field+".address", e.GetAddress())
	if err == nil && e.GetPort() > 65535 {
		err = rdserr.With(rdserr.ErrInvalid, "%s.port is %d; ports go from 0, which is any here, to 65535", field, e.GetPort())
	}
	return netip.AddrPortFrom(addr, uint16(e.GetPort())), err
}

// bootID names the boot of this machine: whoever has the same has the same wall clock.
var bootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it nobody is known to share the clock
	return strings.TrimSpace(string(b))
})

func (a *adminServer) traceStart() *rdsdv1.TraceReport {
	s := &rdsdv1.TraceStart{}
	s.SetClock(bootID())
	var locals [][]byte
	for _, h := range a.front.deps.Host.Locals() {
		locals = append(locals, h.Addr().AsSlice())
	}
	s.SetLocalAddress(locals)
	r := &rdsdv1.TraceReport{}
	r.SetStart(s)
	return r
}

func tracePB(events []datagram.TraceEvent, dropped uint64) *rdsdv1.TraceReport {
	r := &rdsdv1.TraceReport{}
	r.SetDropped(dropped)
	list := make([]*rdsdv1.TraceEvent, len(events))
	for i := range events {
		list[i] = traceEventPB(&events[i])
	}
	r.SetEvent(list)
	return r
}

var traceStages = map[rds.Stage]rdsdv1.TraceStage{
	rds.StageLeft:        rdsdv1.TraceStage_TRACE_STAGE_LEFT,
	rds.StageRefused:     rdsdv1.TraceStage_TRACE_STAGE_REFUSED,
	rds.StageDone:        rdsdv1.TraceStage_TRACE_STAGE_DONE,
	rds.StageNotAccepted: rdsdv1.TraceStage_TRACE_STAGE_NOT_ACCEPTED,
	rds.StagePlaced:      rdsdv1.TraceStage_TRACE_STAGE_PLACED,
	rds.StageNotPlaced:   rdsdv1.TraceStage_TRACE_STAGE_NOT_PLACED,
	rds.StageRead:        rdsdv1.TraceStage_TRACE_STAGE_READ,
	rds.StageDropped:     rdsdv1.TraceStage_TRACE_STAGE_DROPPED,
}

func traceEventPB(e *datagram.TraceEvent) *rdsdv1.TraceEvent {
	m := &rdsdv1.TraceEvent{}
	m.SetStage(traceStages[e.Stage])
	m.SetUnixNs(e.At)
	m.SetSource(client.EndpointPB(e.Src))
	m.SetDestination(client.EndpointPB(e.Dst))
	if e.Lane == rds.LaneHere {
		m.SetHere(true)
	} else {
		m.SetLane(uint32(e.Lane))
	}
	m.SetSequence(e.Seq)
	m.SetIncarnation(e.Incarnation)
	m.SetDatagrams(uint32(e.Count))
	m.SetMember(uint32(e.Member))
	m.SetBytes(uint64(e.Bytes))
	m.SetPostedUnixNs(e.Posted)
	m.SetAcceptedUnixNs(e.Accepted)
	m.SetReceivedUnixNs(e.Received)
	m.SetOutcome(client.OutcomePB(e.Outcome))
	m.SetReason(traceReason(e))
	return m
}

// traceReason says why a stage is no good one; "" for those that are.
func traceReason(e *datagram.TraceEvent) string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Stage == rds.StageRefused, e.Stage == rds.StageNotPlaced && e.Verdict == conn.NoRoom:
		return "the receiver has no room"
	case e.Stage == rds.StageNotPlaced:
		return conn.WhyNoPort.String()
	case e.Stage == rds.StageDropped:
		return "its socket was closed before it was read"
	}
	return e.Why.String()
}
