//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// rings is the front end over memory shared with the daemon (docs/shm.md).
//
// A call does its own work: it posts descriptors, takes in events and walks the receive
// ring, under a lock each for the sending side (with the events, which give its memory
// back) and for the receiving side. No call holds one while waiting: one that finds nothing
// to do looks at the words for a while, then parks (ringwait.go). Posting is acceptance, so
// no send waits for an answer, but for the first to a destination: whether the daemon can
// send there at all is an error of that call.
//
// Lock order: Socket.mu, txMu or rxMu, waitList.mu. txMu and rxMu are never held together.
//
// Read first: ringlink.go (one region and its connection), ringsend.go,
// ringrecv.go.
type rings struct {
	*Socket
	path    string
	waiters waitList

	cur    *ringLink   // guarded by Socket.mu; Socket.link as what it is
	former []*ringLink // guarded by Socket.mu; links before it that may still have a descriptor

	_       [64]byte // the two sides have cache lines of their own
	txMu    sync.Mutex
	tx      *ringLink                   // guarded by txMu; nil while not connected
	txOver  error                       // guarded by txMu
	nextTag uint64                      // guarded by txMu; the last one given away
	undecid tagSet                      // guarded by txMu; posted and without outcome, with cfg.outcomes
	refused map[netip.AddrPort]struct{} // guarded by txMu; congested ones that watchers are to hear of; none without tx
	pass    uint64                      // guarded by txMu; of batches, marks flows that are held up
	txSeq   atomic.Uint32

	_        [64]byte
	rxMu     sync.Mutex
	rx       *ringLink    // guarded by rxMu; nil while not connected
	over     error        // guarded by rxMu
	halfRead fifo[*train] // guarded by rxMu; taken from the ring, not read yet
	private  int          // guarded by rxMu; bytes of trains that came by pairs and are kept
	lastPump bool         // guarded by rxMu; all that is there is to be kept
	reqs     requestList  // guarded by rxMu
	spare    trainStore   // guarded by rxMu
	own      slab         // guarded by rxMu
	poll     bool         // guarded by rxMu; the ring is full of news that cannot be taken now
	left     int          // guarded by rxMu; bytes of halfRead that came by former links
	soft     uint64       // guarded by rxMu; the receive buffer that a link was granted as this socket wants it
	rxSeq    atomic.Uint32
}

// openRings makes the first link over rings.
func (s *Socket) openRings(ctx context.Context, path string) (link, error) {
	r := &rings{Socket: s, path: path}
	s.setFrontEnd(r)
	return r.connect(ctx)
}

func (r *rings) kind() FrontEnd { return Rings }

func (r *rings) startLocked(l link) {
	rl := l.(*ringLink)
	r.cur = rl
	r.forgetLocked(rl)
	r.txMu.Lock()
	r.tx = rl
	r.txSeq.Add(1)
	r.txMu.Unlock()
	r.rxMu.Lock()
	r.rx = rl
	if !rl.least {
		r.soft = rl.region.RcvBuf
	}
	r.rxSeq.Add(1)
	r.rxMu.Unlock()
	r.waiters.wake(allBits)
	go rl.keep() // ends with the link
}

func (r *rings) dropLocked(l link, cause error) {
	r.cur = nil
	rl := l.(*ringLink)
	reason := reasonRestarted
	if cause != nil {
		reason = reasonClosed
	}
	r.dropSends(rl, reason)
	r.dropReceives(rl, isClosed(cause))
	r.waiters.wake(allBits)
}

// dropSends takes in the events that are there; datagrams without an outcome then will have
// none.
func (r *rings) dropSends(l *ringLink, reason string) {
	r.txMu.Lock()
	defer r.txMu.Unlock()
	r.takeEventsLocked(l)
	for _, run := range r.undecid.take() {
		r.outcomes.add(run.first, run.count, Unknown, reason)
	}
	l.dropPairsLocked()
	r.tx = nil
	r.refused = nil // every watcher is told to look at everything
	r.txSeq.Add(1)
	l.unuse()
}

// dropReceives keeps datagrams that have arrived and were not read: they were delivered. The mapping stays for what is
// borrowed alone.
func (r *rings) dropReceives(l *ringLink, closed bool) {
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	l.recv.Abandon()
	l.shutPairsLocked() // what got in so far is kept
	if !closed {
		r.lastPump = true
		_ = r.pumpLocked(l) // an error ends the link, which ends here
		r.lastPump = false
	}
	if closed {
		r.keepFrontLocked()
	} else {
		r.leaveLocked(l)
	}
	l.setPairsLocked(nil)
	r.rx = nil
	r.rxSeq.Add(1)
	l.endUse()
	if l.recv.Out() == 0 {
		l.unref()
	}
}

func (r *rings) finishLocked(err error) {
	r.txMu.Lock()
	r.txOver = err
	r.txSeq.Add(1)
	r.txMu.Unlock()
	r.rxMu.Lock()
	r.over = err
	if isClosed(err) {
		for r.halfRead.len() > 0 {
			r.dropTrainLocked(r.halfRead.pop())
		}
	}
	r.reqs.failAll(err)
	r.rxSeq.Add(1)
	r.rxMu.Unlock()
	r.waiters.wake(allBits)
}

func (r *rings) tellLocked(m *rdsdv1.ClientMessage) { r.cur.ctl.tell(m) }

func (r *rings) withdrawLocked(m *rdsdv1.ClientMessage, waits func(id uint64) bool) {
	if r.cur != nil {
		r.cur.ctl.withdraw(m, waits)
	}
}

func (r *rings) push() {
	r.mu.Lock()
	if l := r.cur; l != nil {
		l.writeLocked()
	}
	r.mu.Unlock()
}

// knows answers from the daemon's entries in the flow table.
func (r *rings) knows(dst netip.AddrPort) (congested, ok bool) {
	r.txMu.Lock()
	defer r.txMu.Unlock()
	if r.tx == nil {
		return false, false
	}
	f := r.tx.send.Known(dst)
	if f == nil {
		return false, false
	}
	st := r.tx.send.State(f).State()
	return st == shm.FlowCongested, st == shm.FlowCongested || st == shm.FlowClear
}

// takeEventsLocked takes in all events that are there. Room that they free is news for
// every sender that waits.
func (r *rings) takeEventsLocked(l *ringLink) (some bool) {
	var ev shm.Event
	n := 0
	for {
		ok, err := l.send.NextEvent(&ev)
		if err != nil {
			l.fail(err)
			break
		}
		if !ok {
			break
		}
		n++
		switch ev.Kind {
		case shm.EventOutcome, shm.EventRefused:
			if r.cfg.outcomes && ev.Count > 0 {
				r.decidedLocked(&ev)
			}
		case shm.EventCongestion:
			r.watch.news(0, CongestionChange{Addr: ev.Dst, Congested: ev.Flags&shm.EventCongested != 0})
		case shm.EventFreed:
			r.watch.news(ev.Tag)
		}
	}
	if n > 0 {
		// Once for all: it shows the daemon the new head, and may wake it.
		l.send.EventsTaken()
		r.txSeq.Add(1)
		r.waiters.wake(shm.ClientWaitsEvent | shm.ClientWaitsSendRoom)
	}
	return n > 0
}

// decidedLocked notes outcomes. A second one is dropped: there is one for each datagram.
func (r *rings) decidedLocked(ev *shm.Event) {
	kind, reason := Unknown, ""
	switch ev.Outcome {
	case shm.Delivered:
		kind = Delivered
	case shm.Cancelled:
		kind = Cancelled
	case shm.Failed:
		kind = Failed
	}
	if ev.Kind == shm.EventRefused {
		kind = Failed
		if err := errnoError(int32(ev.Errno), ""); err != nil {
			reason = err.Error()
		}
	} else if kind != Delivered {
		reason = shm.Reason(ev.Why)
	}
	// Most events decide a whole run; only parts of one need the search.
	if r.undecid.removeWhole(ev.Tag, uint64(ev.Count)) {
		r.outcomes.add(ev.Tag, uint64(ev.Count), kind, reason)
		return
	}
	for _, run := range r.undecid.remove(ev.Tag, uint64(ev.Count)) {
		r.outcomes.add(run.first, run.count, kind, reason)
	}
}

func (r *rings) outcomesRead() {
	r.txMu.Lock()
	r.txSeq.Add(1)
	r.txMu.Unlock()
	r.waiters.wake(shm.ClientWaitsEvent | shm.ClientWaitsSendRoom)
}

func (r *rings) awaitOutcome(ctx context.Context) error {
	return r.awaitEvents(ctx, r.outcomes.ready)
}

func (r *rings) awaitCongestion(ctx context.Context, w *watcher) error {
	return r.awaitEvents(ctx, func() bool {
		r.clearedLocked()
		return r.watch.ready(w)
	})
}

// refusedLocked notes a destination that a call was refused for. The daemon
// tells of changes from the moment it hears of the watch, which may be after
// that one; so its clearing is found in the flow table, too.
func (r *rings) refusedLocked(dst netip.AddrPort) {
	if !r.watch.active() || len(r.refused) >= maxChanges {
		return
	}
	if r.refused == nil {
		r.refused = make(map[netip.AddrPort]struct{})
	}
	if _, ok := r.refused[dst]; !ok {
		r.refused[dst] = struct{}{}
		r.txSeq.Add(1)
		r.waiters.wake(shm.ClientWaitsEvent)
	}
}

// clearedLocked tells of those that are clear by now.
func (r *rings) clearedLocked() {
	for dst := range r.refused {
		f := r.tx.send.Known(dst)
		if f == nil || r.tx.send.State(f).State() == shm.FlowClear {
			delete(r.refused, dst)
			r.watch.news(0, CongestionChange{Addr: dst})
		}
	}
}

// watchRefusedLocked has a waiter look at their flow states.
func (r *rings) watchRefusedLocked(w *waiter) {
	for dst := range r.refused {
		if f := r.tx.send.Known(dst); f != nil {
			w.bits |= shm.ClientWaitsFlow
			w.flows = append(w.flows, flowWatch{f.Index(), uint64(r.tx.send.State(f))})
		}
	}
}

// awaitEvents takes in events until there says that it was worth it.
func (r *rings) awaitEvents(ctx context.Context, there func() bool) error {
	var w *waiter
	defer func() { w.done() }()
	for {
		seq := r.txSeq.Load()
		r.txMu.Lock()
		if r.tx != nil {
			r.takeEventsLocked(r.tx)
			seq = r.txSeq.Load() // room that this freed is no news to us
		}
		if there() {
			r.txMu.Unlock()
			return nil
		}
		w = w.renew(r, r.tx, shm.ClientWaitsEvent)
		r.watchRefusedLocked(w)
		r.txMu.Unlock()
		w.seq, w.of = seq, &r.txSeq
		if err := w.wait(ctx); err != nil {
			return ctxError(ctx, nil)
		}
	}
}

// away is why there is no daemon now.
func (r *rings) away() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Socket.over != nil {
		return r.Socket.over
	}
	return r.awayLocked()
}

var errAway = rdserr.With(rdserr.ErrShutdown, "not connected to the daemon")
