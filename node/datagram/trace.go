package datagram

import (
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// A trace follows datagrams that somebody chose, from stage to stage. The engines tell of
// every message (rds.Tracer); a trace keeps what its rule chooses in memory of a fixed
// size, which it takes at its begin and its account pays, and drops, with a count, what
// finds no place. Nothing here blocks or wakes anybody: who asked for the trace comes and
// takes what there is. While there is a trace each step of an engine reads the clock, for
// the turn's time would be the same for many stages; without one, nothing does.

const (
	// MaxTraces is how many there may be at a time. Each makes every step longer.
	MaxTraces = 4

	traceEvents  = 4096 // not taken yet, of one trace
	traceUnread  = 4096 // placed and not read, of one trace
	traceWaiting = 1024 // messages that wait in their sockets, of one trace
	traceFrames  = 1024 // messages that left with others and have no outcome, of one trace

	// traceBytes covers all of these (TestTraceMemory).
	traceBytes = 3 << 20
)

// TraceRule chooses datagrams by what both nodes know of them, so that the same rule
// chooses the same ones at both. Of an address and port the parts that are not set are any.
type TraceRule struct {
	Src, Dst netip.AddrPort
	Either   []netip.AddrPort // each fits the source or the destination
	Every    uint64           // of the sequences its multiples; 0: all
}

func (r *TraceRule) fits(src, dst netip.AddrPort) bool {
	if !within(r.Src, src) || !within(r.Dst, dst) {
		return false
	}
	for _, e := range r.Either {
		if !within(e, src) && !within(e, dst) {
			return false
		}
	}
	return true
}

func within(rule, ep netip.AddrPort) bool {
	return (!rule.Addr().IsValid() || rule.Addr() == ep.Addr()) && (rule.Port() == 0 || rule.Port() == ep.Port())
}

// TraceEvent is one stage of one datagram. Times are of this node's wall clock, in
// nanoseconds, 0 being unknown.
type TraceEvent struct {
	Stage            rds.Stage
	Src, Dst         netip.AddrPort
	Lane             int // rds.LaneHere: it stays at its address
	Seq, Incarnation uint64
	Count, Bytes     int // datagrams and payload of the message
	Member           int // which of its datagrams this is
	At               int64
	Posted, Accepted int64
	Received         int64
	Outcome          conn.Outcome
	Why              conn.Why
	Verdict          conn.Verdict
	Err              error
}

// Trace is a trace that runs. Close ends it.
type Trace struct {
	rule    TraceRule
	host    *Host
	account *quota.Account
	wall    int64 // of the engines' time 0: one for the whole trace, so that a clock that is set meanwhile does not tear it

	mu      sync.Mutex // nothing is called with it held; guards what follows
	events  []TraceEvent
	head, n int
	dropped uint64
	waiting map[*conn.Msg]waitingSince
	frames  map[*conn.Msg]int // payload of the frame in which a message left with others, until its end
	unread  unreadList
	unsent  uint64 // messages without a sequence so far
}

// waitingSince is when a message began to wait in its socket. Its clock is the engines'.
type waitingSince struct {
	at       time.Duration
	accepted bool
}

// traces is those of a Host.
type traces struct {
	mu  sync.Mutex // nothing but the locks of the engines is taken with it held
	all []*Trace
	n   atomic.Int32 // of them, for whoever counts
}

// Traced reports whether somebody traces what passes this address. The lock is held.
func (h *Local) Traced() bool { return h.tracing != nil }

// tracing is what the engine of a Local tells; a new one for each change of the list.
type tracing struct {
	h   *Local
	all []*Trace
}

var _ rds.Tracer = (*tracing)(nil)

// Trace implements rds.Tracer.
func (x *tracing) Trace(t rds.Traced) (followed bool) {
	now := x.h.now()
	for _, to := range x.all {
		followed = to.note(x.h, now, &t) || followed
	}
	return followed
}

// Trace begins a trace, whose memory is holder's.
func (a *Host) Trace(rule TraceRule, holder quota.Holder) (*Trace, error) {
	x := &a.traces
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.all) >= MaxTraces {
		return nil, rdserr.With(rdserr.ErrTooMany, "%d traces run already, which is the most; end one of them", len(x.all))
	}
	account := a.deps.Memory.Account(holder)
	// Before there is any of it.
	if err := account.Take(quota.Traces, traceBytes); err != nil {
		account.Close()
		return nil, err
	}
	rule.Every = max(rule.Every, 1)
	t := &Trace{rule: rule, host: a, account: account, wall: a.machine.wallOfZero(), events: make([]TraceEvent, traceEvents),
		waiting: make(map[*conn.Msg]waitingSince), frames: make(map[*conn.Msg]int), unread: newUnreadList()}
	x.all = append(x.all, t)
	a.setTraces()
	return t, nil
}

// Close ends the trace.
func (t *Trace) Close() {
	a := t.host
	x := &a.traces
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, o := range x.all {
		if o == t {
			x.all = append(x.all[:i:i], x.all[i+1:]...)
			a.setTraces()
			t.account.Give(quota.Traces, traceBytes)
			t.account.Close()
			return
		}
	}
}

// Traces is how many run.
func (a *Host) Traces() int { return int(a.traces.n.Load()) }

// setTraces has the engines tell those that there are. traces.mu is held.
func (a *Host) setTraces() {
	all := a.traces.all
	a.traces.n.Store(int32(len(all)))
	for _, h := range a.list {
		e, _ := h.Lock()
		if h.tracing = nil; len(all) > 0 {
			h.tracing = &tracing{h, all}
			e.SetTracer(h.tracing)
		} else {
			e.SetTracer(nil)
		}
		h.Unlock()
	}
}

// wallOfZero is the wall clock at the engines' time 0, in nanoseconds: of a few looks the
// one that nobody came between.
func (m *Machine) wallOfZero() (zero int64) {
	best := time.Duration(math.MaxInt64)
	for range 8 {
		before := m.Clock()
		wall := m.Wall()
		after := m.Clock()
		if after-before < best {
			best = after - before
			zero = wall.UnixNano() - int64(before+best/2)
		}
	}
	return zero
}

// Take appends what there is to l, at most max events, and tells how many were dropped so
// far.
func (t *Trace) Take(l []TraceEvent, max int) ([]TraceEvent, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range min(t.n, max) {
		l = append(l, t.events[t.head])
		t.events[t.head] = TraceEvent{}
		t.head = (t.head + 1) % traceEvents
		t.n--
	}
	return l, t.dropped
}

// note takes what the engine of h tells at now, with its lock held. It reports whether it
// waits to hear that the message is read.
func (t *Trace) note(h *Local, now time.Duration, x *rds.Traced) (followed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.Stage == rds.StageRead || x.Stage == rds.StageDropped {
		t.noteRead(h, now, x)
		return false
	}
	if !t.rule.fits(x.Src, x.Dst) {
		return false
	}
	switch x.Stage {
	case rds.StageWaits:
		t.noteWaits(now, x)
	case rds.StagePlaced:
		if e, ok := t.event(now, x); ok {
			e.Received = t.wall + int64(x.At)
			t.put(e)
			if followed = t.unread.push(unreadOf{h, x.Socket}, x.Nth+uint64(e.Member), e); !followed {
				t.dropped++
			}
		}
	case rds.StageNotPlaced:
		if e, ok := t.event(now, x); ok {
			e.Received = t.wall + int64(x.At)
			t.put(e)
		}
	default:
		if e, ok := t.event(now, x); ok {
			// What is said of a message that has left was said when it left.
			if x.Stage == rds.StageLeft || x.Seq == 0 || x.Lane == rds.LaneHere {
				t.sendTimes(&e, x)
			}
			if x.Of > 0 {
				e.Bytes = t.frameBytes(x)
			}
			t.put(e)
		}
		if x.Stage == rds.StageDone || x.Stage == rds.StageNotAccepted {
			delete(t.waiting, x.Msg) // another message may have its place soon
			delete(t.frames, x.Msg)
		}
	}
	return followed
}

// frameBytes is the payload of the frame in which a message left with others, which is known when it
// leaves and kept until its end; for one of which it is not kept, its own.
func (t *Trace) frameBytes(x *rds.Traced) int {
	if x.Stage == rds.StageLeft {
		if _, again := t.frames[x.Msg]; again || len(t.frames) < traceFrames {
			t.frames[x.Msg] = x.OfBytes
		}
		return x.OfBytes
	}
	if bytes, ok := t.frames[x.Msg]; ok {
		return bytes
	}
	return x.Bytes
}

// event describes a stage, if the rule chooses the message. Of those that never had a
// sequence one in so many is chosen.
func (t *Trace) event(now time.Duration, x *rds.Traced) (e TraceEvent, ok bool) {
	number := x.Seq
	if number == 0 {
		t.unsent++
		number = t.unsent
	}
	if number%t.rule.Every != 0 {
		return e, false
	}
	// Of a train the same one at both nodes, and another one each time. Messages that left together
	// are one train to the receiver, and that one is of one of them.
	count := max(x.Count, x.Of, 1)
	member := int(number / t.rule.Every % uint64(count))
	if x.Of > 0 && (member < x.Before || member >= x.Before+x.Count) {
		return e, false
	}
	return TraceEvent{Stage: x.Stage, Src: x.Src, Dst: x.Dst, Lane: x.Lane, Seq: x.Seq, Incarnation: x.Incarnation, Count: count, Bytes: x.Bytes,
		Member: member,
		At:     t.wall + int64(now), Outcome: x.Outcome, Why: x.Why, Verdict: x.Verdict, Err: x.Err}, true
}

// sendTimes fills in when a message was posted and accepted: the same time, unless it had
// to wait.
func (t *Trace) sendTimes(e *TraceEvent, x *rds.Traced) {
	w, waited := t.waiting[x.Msg]
	at := x.At
	switch {
	case waited && w.accepted:
		at = w.at
	case x.Stage == rds.StageNotAccepted:
		at = 0
	}
	if at != 0 {
		e.Accepted = t.wall + int64(at)
		e.Posted = e.Accepted
	}
	if waited {
		e.Posted = t.wall + int64(w.at)
	}
}

func (t *Trace) noteWaits(now time.Duration, x *rds.Traced) {
	if _, again := t.waiting[x.Msg]; again {
		return
	}
	if len(t.waiting) >= traceWaiting {
		t.dropped++
		return
	}
	t.waiting[x.Msg] = waitingSince{now, x.Accepted}
}

// noteRead tells of the datagrams of a socket that were read, or will never be.
func (t *Trace) noteRead(h *Local, now time.Duration, x *rds.Traced) {
	before := x.Nth
	if x.Stage == rds.StageDropped {
		before = math.MaxUint64
	}
	for {
		e, ok := t.unread.pop(unreadOf{h, x.Socket}, before)
		if !ok {
			return
		}
		e.Stage, e.At, e.Received = x.Stage, t.wall+int64(now), 0
		t.put(e)
	}
}

// put keeps an event until it is taken.
func (t *Trace) put(e TraceEvent) {
	if t.n == traceEvents {
		t.dropped++
		return
	}
	t.events[(t.head+t.n)%traceEvents] = e
	t.n++
}

// unreadList is the datagrams that were placed and not read, by socket in their order, in
// memory of a fixed size.
type unreadList struct {
	nodes []unreadNode
	free  int32 // list through next; none: -1
	socks map[unreadOf]unreadEnds
}

type unreadOf struct {
	h      *Local
	socket uint64
}

type unreadEnds struct{ head, tail int32 }

type unreadNode struct {
	nth  uint64
	e    TraceEvent
	next int32
}

func newUnreadList() unreadList {
	l := unreadList{nodes: make([]unreadNode, traceUnread), socks: make(map[unreadOf]unreadEnds)}
	for i := range l.nodes {
		l.nodes[i].next = int32(i) + 1
	}
	l.nodes[traceUnread-1].next = -1
	return l
}

// push adds the datagram with number nth of a socket, if there is a place for it.
func (l *unreadList) push(of unreadOf, nth uint64, e TraceEvent) bool {
	i := l.free
	if i < 0 {
		return false
	}
	l.free = l.nodes[i].next
	l.nodes[i] = unreadNode{nth, e, -1}
	ends, ok := l.socks[of]
	if ok {
		l.nodes[ends.tail].next = i
	} else {
		ends.head = i
	}
	ends.tail = i
	l.socks[of] = ends
	return true
}

// pop takes the first datagram of a socket, if its number is below before.
func (l *unreadList) pop(of unreadOf, before uint64) (e TraceEvent, ok bool) {
	ends, ok := l.socks[of]
	if !ok || l.nodes[ends.head].nth >= before {
		return e, false
	}
	i := ends.head
	e = l.nodes[i].e
	if ends.head = l.nodes[i].next; ends.head < 0 {
		delete(l.socks, of)
	} else {
		l.socks[of] = ends
	}
	l.nodes[i] = unreadNode{next: l.free}
	l.free = i
	return e, true
}
