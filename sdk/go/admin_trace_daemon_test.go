package rdsd_test

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// tracing runs a trace at a daemon from before it returns until ctx ends, and brings what
// it is told.
func tracing(ctx context.Context, t *testing.T, d *rdsdtest.Daemon, f rdsd.TraceFilter) <-chan rdsd.TraceEvent {
	t.Helper()
	admin := d.Dial().Admin()
	ctx, cancel := context.WithCancel(ctx)
	seq := admin.Trace(ctx, f)
	events := make(chan rdsd.TraceEvent, 10000)
	t.Cleanup(func() { // before the client is closed
		cancel()
		for range events {
		}
	})
	go func() { // ends with ctx
		defer close(events)
		for r, err := range seq {
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("the trace ends: %v", err)
				}
				return
			}
			if r.Dropped > 0 {
				t.Errorf("%d events were dropped", r.Dropped)
			}
			for _, e := range r.Events {
				events <- e
			}
		}
	}()
	return events
}

// sequence names a message at both nodes.
type sequence struct {
	src, dst netip.AddrPort
	inc, seq uint64
	lane     uint32
}

// passage is what both nodes told of a message.
type passage struct {
	sent, done, placed, read []rdsd.TraceEvent
}

// passed gathers events until there are so many datagrams in messages of which every stage
// was told.
func passed(ctx context.Context, t *testing.T, a, b <-chan rdsd.TraceEvent, datagrams int) map[sequence]*passage {
	t.Helper()
	all := map[sequence]*passage{}
	for {
		n := 0
		for _, p := range all {
			if len(p.sent) > 0 && len(p.done) > 0 && len(p.placed) > 0 && len(p.read) > 0 {
				n += int(p.sent[0].Datagrams)
			}
		}
		if n >= datagrams {
			return all
		}
		var e rdsd.TraceEvent
		select {
		case e = <-a:
		case e = <-b:
		case <-ctx.Done():
			for s, p := range all {
				t.Logf("%+v: %+v", s, p)
			}
			t.Fatalf("%d datagrams of %d have all their stages", n, datagrams)
		}
		k := sequence{e.Source, e.Destination, e.Incarnation, e.Seq, e.Lane}
		p := all[k]
		if p == nil {
			p = &passage{}
			all[k] = p
		}
		switch e.Stage {
		case rdsd.TraceLeft:
			p.sent = append(p.sent, e)
		case rdsd.TraceDone:
			p.done = append(p.done, e)
		case rdsd.TracePlaced:
			p.placed = append(p.placed, e)
		case rdsd.TraceRead:
			p.read = append(p.read, e)
		default:
			t.Errorf("%+v", e)
		}
	}
}

// TestTraceOfRealDaemons: of each datagram, alone and in trains, every stage is told once,
// in order, by the two daemons, which have the same clock here; and what was told adds up
// to the outcomes.
func TestTraceOfRealDaemons(t *testing.T) { overBoth(t, traceOfRealDaemons) }

func traceOfRealDaemons(t *testing.T, bind binder) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 60*time.Second)
	watch, stop := context.WithCancel(ctx)
	to, from := bind(far, 4860), bind(near, 4861)
	f := rdsd.TraceFilter{Destination: to.LocalAddr(), Either: []netip.AddrPort{from.LocalAddr()}}
	b, a := tracing(watch, t, far, f), tracing(watch, t, near, f)

	const singles, batches, each = 5, 4, 50
	go func() { // ends when it has read them all, or with ctx
		for range singles + batches*each {
			if _, err := to.Recv(ctx); err != nil {
				t.Errorf("receive: %v", err)
				return
			}
		}
	}()
	for range singles {
		if err := from.Send(ctx, to.LocalAddr(), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if err := from.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	batch := slices.Repeat([]rdsd.Datagram{{Addr: to.LocalAddr(), Payload: make([]byte, 20)}}, each)
	for range batches {
		if n, err := from.SendBatch(ctx, batch); n != each || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := from.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	trains, sum := 0, 0
	for k, p := range passed(ctx, t, a, b, singles+batches*each) {
		if len(p.sent) != 1 || len(p.done) != 1 || len(p.placed) != 1 || len(p.read) != 1 {
			t.Errorf("%+v: %+v", k, p)
			continue
		}
		s, d, pl, r := p.sent[0], p.done[0], p.placed[0], p.read[0]
		sum += int(d.Datagrams)
		if s.Datagrams > 1 {
			trains++
		}
		times := []time.Time{s.Posted, s.Accepted, s.Time, pl.Received, pl.Time, r.Time}
		if s.Posted.IsZero() || !slices.IsSortedFunc(times, time.Time.Compare) || d.Time.Before(pl.Time) {
			t.Errorf("%+v: posted, accepted, left, received, placed, read at %v, acknowledged at %v", k, times, d.Time)
		}
		if d.Outcome != rdsd.TraceDelivered || d.Datagrams != s.Datagrams || pl.Datagrams != s.Datagrams || pl.Bytes != s.Bytes || pl.Member != s.Member || r.Member != s.Member || s.Member >= s.Datagrams {
			t.Errorf("%+v: %+v", k, p)
		}
	}
	socks, err := near.Dial().Admin().Sockets(ctx)
	if err != nil || len(socks) != 1 || sum != singles+batches*each || uint64(sum) != socks[0].Delivered || trains == 0 {
		t.Errorf("%d datagrams were told of, %d trains; sockets %+v, %v", sum, trains, socks, err)
	}

	// The end of its caller is the end of the trace.
	stop()
	await.Until(t, 20*time.Second, "both traces end", func() bool { return tracesEnded(ctx, t, near) && tracesEnded(ctx, t, far) })
}

// tracesEnded reports whether a daemon has room for all the traces that it may have.
func tracesEnded(ctx context.Context, t *testing.T, d *rdsdtest.Daemon) bool {
	probe, stop := context.WithCancel(ctx)
	defer stop()
	var all []iter.Seq2[rdsd.TraceReport, error] // each runs from here on
	for range 4 {
		all = append(all, d.Dial().Admin().Trace(probe, rdsd.TraceFilter{}))
	}
	for _, seq := range all {
		for _, err := range seq {
			if err != nil && !errors.Is(err, rdserr.ErrTooMany) {
				t.Fatal(err)
			}
			if err != nil {
				return false
			}
			break
		}
	}
	return true
}

// TestTraceEveryAndOutcomes: one of so many, chosen alike at both nodes; and datagrams that
// nobody has bound the port of end as failed, with the reason.
func TestTraceEveryAndOutcomes(t *testing.T) { overBoth(t, traceEveryAndOutcomes) }

func traceEveryAndOutcomes(t *testing.T, bind binder) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 60*time.Second)
	from := bind(near, 4861)
	nobody := far.AddrPort(4862)
	f := rdsd.TraceFilter{Destination: nobody, Every: 3}
	b, a := tracing(ctx, t, far, f), tracing(ctx, t, near, f)
	const sent = 12
	for range sent {
		if err := from.Send(ctx, nobody, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		if err := from.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var stages [3]int
	for stages != [3]int{sent / 3, sent / 3, sent / 3} {
		var e rdsd.TraceEvent
		select {
		case e = <-a:
		case e = <-b:
		case <-ctx.Done():
			t.Fatalf("left, not placed, done: %v", stages)
		}
		switch {
		case e.Seq%3 != 0:
			t.Errorf("%+v", e)
		case e.Stage == rdsd.TraceLeft:
			stages[0]++
		case e.Stage == rdsd.TraceNotPlaced && e.Reason == "no such port" && !e.Received.IsZero():
			stages[1]++
		case e.Stage == rdsd.TraceDone && e.Outcome == rdsd.TraceFailed && e.Reason == "no such port":
			stages[2]++
		default:
			t.Errorf("%+v", e)
		}
	}
}

// TestTraceRefusals: too many traces, and a filter that makes no sense.
func TestTraceRefusals(t *testing.T) {
	d, _ := rdsdtest.Pair(t)
	ctx := within(t, 30*time.Second)
	for range 4 {
		tracing(ctx, t, d, rdsd.TraceFilter{})
	}
	for _, c := range []struct {
		f    rdsd.TraceFilter
		want error
	}{
		{rdsd.TraceFilter{}, rdserr.ErrTooMany},
		{rdsd.TraceFilter{Either: make([]netip.AddrPort, 5)}, rdserr.ErrInvalid},
	} {
		for _, err := range d.Dial().Admin().Trace(ctx, c.f) {
			if !errors.Is(err, c.want) {
				t.Errorf("%+v: %v, want %v", c.f, err, c.want)
			}
			break
		}
	}
}
