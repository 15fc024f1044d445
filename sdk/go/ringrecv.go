//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"net/netip"

	"github.com/rdsd/rdsd/shm"
)

// Receiving over rings. A descriptor of the receive ring is a train: datagrams of one
// source in one slot. It is walked where it lies; the slot goes back to the daemon when the
// walk is over and every lease on it is released. Trains that were taken from the ring and
// not read to their end are in halfRead, before the ring: the rest of one that was more
// than a call wanted, and trains that a Request found while it looked for its reply.

// train is one slot under way. Guarded by rings.rxMu.
type train struct {
	l    *ringLink
	slot uint64
	src  netip.AddrPort
	lens shm.Lengths
	rest []byte // payloads not read yet
	refs int    // leases, and the walk

	// Of one that came by a pair (ringpair.go), or by a former link: it lies there, or is kept here.
	paired bool
	pair   *pairIn // nil: it is kept
	rec    shm.PairRecord
	own    []byte // to be used again
	left   int    // bytes of rings.left
}

// held belongs to one Borrow: a reference to each train it took from.
type held struct {
	r      *rings
	turn   uint64   // guarded by rings.rxMu; leases of earlier turns are void
	trains []*train // guarded by rings.rxMu
}

// trainStore keeps values that can be used again.
type trainStore struct {
	trains []*train
	held   []*held
	memory [][]byte // for trains that are kept
}

const maxSpare = 256 // of each

// receive hands out payloads in place if how says so. Otherwise they are copied, with the lock
// held: the slot is the daemon's again when the call returns, with no lease in between.
func (r *rings) receive(ctx context.Context, into []Datagram, how place) (int, Lease, error) {
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	n, h, err := r.takeLocked(into, how)
	if n == 0 && (err == nil || err == shm.ErrBorrowed && how != inPlace) {
		n, h, err = r.awaitTrainsLocked(ctx, into, how)
	}
	switch {
	case n == 0:
		return 0, Lease{}, err
	case h == nil:
		return n, Lease{}, nil
	}
	return n, Lease{h, h.turn}, nil
}

// midTrainLocked returns the train that is half read, if the next datagram is neither for a
// Request nor the train's last, which gives the slot back. Nobody has to be told that it was
// taken: every call that waits was woken when the train came, and finds it here until it is
// read.
func (r *rings) midTrainLocked() *train {
	if r.halfRead.len() == 0 || !r.reqs.empty() {
		return nil
	}
	if t := *r.halfRead.front(); t.lens.Left() > 1 {
		return t
	}
	return nil
}

func (r *rings) rest() (d Datagram, ok bool) {
	r.rxMu.Lock()
	if t := r.midTrainLocked(); t != nil {
		d, ok = Datagram{Addr: t.src, Payload: r.own.clone(t.next())}, true
	}
	r.rxMu.Unlock()
	return d, ok
}

func (r *rings) restInto(buf []byte) (n int, from netip.AddrPort, ok bool) {
	r.rxMu.Lock()
	if t := r.midTrainLocked(); t != nil && t.lens.Peek(len(t.rest)) <= len(buf) {
		n, from, ok = copy(buf, t.next()), t.src, true
	}
	r.rxMu.Unlock()
	return n, from, ok
}

// awaitTrainsLocked waits for the first datagrams. The lock is let go of while
// waiting.
func (r *rings) awaitTrainsLocked(ctx context.Context, into []Datagram, how place) (n int, h *held, err error) {
	var w *waiter
	defer func() { w.done() }() // also when ctx panics
	for {
		w = r.rxWaiterLocked(w)
		w.lends = how == inPlace && r.rx != nil && r.rx.recv.Out() > 0
		// After the end of ctx it looks once more: what has come meanwhile is not lost to the caller.
		werr := r.waitUnlocked(ctx, w)
		n, h, err = r.takeLocked(into, how)
		if n == 0 && err == nil && how == inPlace && r.rx != nil && r.rx.recv.Starved() {
			err = shm.ErrBorrowed
		}
		if n > 0 || err != nil && (how == inPlace || err != shm.ErrBorrowed) {
			break
		}
		if werr != nil {
			err = ctxError(ctx, nil)
			break
		}
	}
	return n, h, err
}

// waitUnlocked waits without the lock, and has it again however that ends: the caller's defer
// lets go of it.
func (r *rings) waitUnlocked(ctx context.Context, w *waiter) error {
	r.rxMu.Unlock()
	defer r.rxMu.Lock()
	return w.wait(ctx)
}

// rxWaiterLocked prepares a wait for datagrams.
func (r *rings) rxWaiterLocked(w *waiter) *waiter {
	w = w.renew(r, r.rx, shm.ClientWaitsRecv)
	w.of, w.seq = &r.rxSeq, r.rxSeq.Load()
	if r.rx != nil {
		w.recvHead = r.rx.recv.Taken()
	}
	w.watchPairs(r.rx)
	w.poll, r.poll = r.poll, false
	return w
}

// takeLocked fills into with the datagrams that are there. The error says why there will be
// no more, or why none can be taken now.
func (r *rings) takeLocked(into []Datagram, how place) (n int, h *held, err error) {
	freed := false
	if l := r.rx; l != nil {
		l.recv.Single(len(into) == 1)
		// Requests look at everything that is there first; what they leave is in halfRead,
		// before the ring.
		if !r.reqs.empty() {
			err = r.pumpLocked(l)
		}
	}
	for n < len(into) {
		var t *train
		if r.halfRead.len() > 0 {
			t = *r.halfRead.front()
		} else if r.rx != nil {
			if t, err = r.nextTrainLocked(r.rx, how == inPlace); t != nil {
				r.halfRead.push(t)
			}
		}
		if t == nil {
			break
		}
		switch how {
		case inPlace:
			r.keepLocked(t)
			if h == nil {
				h = r.spare.newHeld(r)
			}
			h.trains = append(h.trains, t)
			// The reference is taken before the payloads are handed out: the slot is the
			// daemon's again with the last one.
			t.refs++
			n += t.read(into[n:])
		case givenOnly:
			if size := t.lens.Peek(len(t.rest)); !into[n].hasRoom(size) {
				return 0, nil, errRoom(size, cap(into[n].Payload)) // into has one element
			}
			fallthrough
		default:
			n += t.copyTo(into[n:], how, &r.own)
		}
		if t.lens.Left() > 0 {
			continue
		}
		r.halfRead.pop()
		if t.refs--; t.refs == 0 {
			freed = r.freeLocked(t) || freed
			r.spare.putTrain(t)
		}
	}
	if n > 0 {
		if r.rx != nil {
			if r.rx.ending > 0 { // this may have been the last of a pair
				r.rx.sweepPairsLocked()
			}
			// Once for the call, not for each train: it is a store that the daemon polls.
			r.rx.recv.Taken()
		}
		if freed {
			r.rx.recv.Released()
		}
		// One wake-up of the daemon may bring several trains, and only this call was woken.
		if r.halfRead.len() > 0 { // for other readers
			r.rxSeq.Add(1)
			r.waiters.wake(shm.ClientWaitsRecv)
		}
		return n, h, nil
	}
	if err != shm.ErrBorrowed { // another error ends the socket, which says why
		err = r.over
	}
	return 0, nil, err
}

// nextTrainLocked takes a train from the ring or a pair; nil when there is none. kept says that
// one from a pair is to be copied: not beyond what may be.
func (r *rings) nextTrainLocked(l *ringLink, kept bool) (*train, error) {
	p, rec, ok, err := r.nextLocked(l)
	d := &l.desc
	if p != nil {
		if kept && r.private >= maxPrivate && !r.lastPump {
			return nil, r.noTrainLocked(l, shm.ErrBorrowed)
		}
		return r.pairTrainLocked(l, p, rec), nil
	}
	if !ok {
		return nil, r.noTrainLocked(l, err)
	}
	l.order.FromRing()
	l.recv.Take()
	t := r.spare.newTrain()
	t.l, t.slot, t.src, t.refs = l, d.Slot, d.Src, 1
	t.lens, t.rest = shm.Walk(d.Word, l.recv.Body(d))
	return t, nil
}

// noTrainLocked returns the caller's error when the ring gives nothing because of err.
func (r *rings) noTrainLocked(l *ringLink, err error) error {
	switch {
	case err == shm.ErrReleases: // no news of that: look again in a while
		r.poll = true
		return nil
	case err == shm.ErrBorrowed:
		r.poll = true
	case err != nil:
		l.fail(err)
	}
	return err
}

// read hands out as many datagrams as into takes.
func (t *train) read(into []Datagram) int {
	n := min(len(into), t.lens.Left())
	if each := t.lens.Each(); each >= 0 {
		rest := t.rest
		for i := range into[:n] {
			d := &into[i]
			d.Addr, d.Payload, d.Tag, d.lent = t.src, rest[:each:each], 0, true
			rest = rest[each:]
		}
		t.rest = rest
		t.lens.Skip(n)
		return n
	}
	for i := range into[:n] {
		into[i] = Datagram{Addr: t.src, Payload: t.next(), lent: true}
	}
	return n
}

// copyTo copies as many datagrams as into takes.
func (t *train) copyTo(into []Datagram, how place, own *slab) int {
	n := min(len(into), t.lens.Left())
	for i := range into[:n] {
		d := &into[i]
		d.Addr, d.Tag = t.src, 0
		d.copyIn(t.next(), how, own)
	}
	return n
}

// next hands out the payload of one datagram.
func (t *train) next() []byte {
	n := t.lens.Next(len(t.rest))
	p := t.rest[:n:n]
	t.rest = t.rest[n:]
	return p
}

// dropTrainLocked gives up the walk of a train.
func (r *rings) dropTrainLocked(t *train) {
	if t.refs--; t.refs == 0 && r.freeLocked(t) {
		t.l.recv.Released()
	}
	// The train itself is left to the collector: this is the end of a socket.
}

// freeLocked gives back the slot of a train that has no reference any more. If it returns
// true the caller publishes that; else the daemon is gone.
func (r *rings) freeLocked(t *train) bool {
	l := t.l
	if t.paired {
		r.freePairedLocked(t)
		return false
	}
	l.recv.Release(t.slot)
	if l == r.rx {
		return true
	}
	if l.recv.Out() == 0 {
		l.unref()
	}
	return false
}

func (h *held) release(turn uint64) {
	r := h.r
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	if h.turn != turn {
		return
	}
	h.turn++
	publish := false
	for i, t := range h.trains {
		if t.refs--; t.refs == 0 {
			publish = r.freeLocked(t) || publish
			r.spare.putTrain(t)
		}
		h.trains[i] = nil
	}
	h.trains = h.trains[:0]
	r.spare.putHeld(h)
	if publish {
		r.rx.recv.Released()
	}
}

// pumpLocked empties the ring into halfRead. Requests that wait for a datagram of that
// source come first. On a reply port all others are dropped.
func (r *rings) pumpLocked(l *ringLink) error {
	stashed := false
	// One that lies in a pair is at its front until it is kept.
	r.keepFrontLocked()
	for {
		t, err := r.nextTrainLocked(l, true)
		if t == nil {
			l.recv.Taken()
			if l.ending > 0 {
				l.sweepPairsLocked()
			}
			if stashed {
				r.rxSeq.Add(1)
				r.waiters.wake(shm.ClientWaitsRecv)
			}
			return err
		}
		r.keepLocked(t)
		r.answerRequests(t)
		if t.lens.Left() > 0 && !r.cfg.replies {
			r.halfRead.push(t)
			stashed = true
			continue
		}
		if t.refs--; r.freeLocked(t) {
			l.recv.Released()
		}
		r.spare.putTrain(t)
	}
}

// answerRequests gives datagrams of t to the Requests that wait for them.
func (r *rings) answerRequests(t *train) {
	for t.lens.Left() > 0 {
		w := r.reqs.pick(t.src)
		if w == nil {
			return
		}
		d := Datagram{Addr: t.src}
		d.copyIn(t.next(), ownMemory, &r.own)
		w.reply <- d // capacity 1, and a waiter is in the list once
		r.rxSeq.Add(1)
		r.waiters.wake(shm.ClientWaitsRecv)
	}
}

// addRequest begins with datagrams that come from now on: those that are there go to Recv.
func (r *rings) addRequest(w *requestWaiter) {
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	if r.rx != nil {
		_ = r.pumpLocked(r.rx) // an error ends the link, or passes
	}
	r.reqs.add(w, r.over)
}

func (r *rings) removeRequest(w *requestWaiter) {
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	r.reqs.remove(w)
}

func (r *rings) awaitReply(ctx context.Context, req *requestWaiter) error {
	var w *waiter
	defer func() { w.done() }()
	for {
		r.rxMu.Lock()
		if r.rx != nil {
			_ = r.pumpLocked(r.rx)
		}
		if req.decided() {
			r.rxMu.Unlock()
			return nil
		}
		w = r.rxWaiterLocked(w)
		r.rxMu.Unlock()
		if err := w.wait(ctx); err != nil {
			return ctxError(ctx, nil)
		}
	}
}

// peekSize looks without taking. While there is no daemon it waits for one, as a
// question to the daemon would.
func (r *rings) peekSize(ctx context.Context) (int, bool, error) {
	if ctx.Err() != nil {
		return 0, false, ctxError(ctx, nil)
	}
	var w *waiter
	defer func() { w.done() }()
	for {
		r.rxMu.Lock()
		n, ok, err := r.peekLocked()
		if ok || err != nil || r.rx != nil {
			r.rxMu.Unlock()
			return n, ok, err
		}
		w = r.rxWaiterLocked(w)
		r.rxMu.Unlock()
		if w.wait(ctx) != nil {
			return 0, false, ctxError(ctx, r.away())
		}
	}
}

func (r *rings) peekLocked() (n int, ok bool, err error) {
	if r.halfRead.len() > 0 {
		t := *r.halfRead.front()
		return t.lens.Peek(len(t.rest)), true, nil
	}
	if r.rx == nil {
		return 0, false, r.over
	}
	p, rec, ok, err := r.nextLocked(r.rx)
	if p != nil {
		lens, rest := shm.Walk(rec.Word, rec.Body)
		return lens.Peek(len(rest)), true, nil
	}
	if !ok {
		return 0, false, r.noTrainLocked(r.rx, err)
	}
	lens, rest := shm.Walk(r.rx.desc.Word, r.rx.recv.Body(&r.rx.desc))
	return lens.Peek(len(rest)), true, nil
}

func (s *trainStore) newTrain() *train {
	if n := len(s.trains); n > 0 {
		t := s.trains[n-1]
		s.trains = s.trains[:n-1]
		return t
	}
	return &train{}
}

func (s *trainStore) putTrain(t *train) {
	*t = train{}
	if len(s.trains) < maxSpare {
		s.trains = append(s.trains, t)
	}
}

// newMemory is memory of n bytes for a train that is kept.
func (s *trainStore) newMemory(n int) []byte {
	if k := len(s.memory); k > 0 {
		b := s.memory[k-1]
		s.memory = s.memory[:k-1]
		if cap(b) >= n {
			return b[:n]
		}
	}
	return make([]byte, n, max(n, slabBytes))
}

const maxSpareMemory = 8

func (s *trainStore) putMemory(b []byte) {
	if len(s.memory) < maxSpareMemory {
		s.memory = append(s.memory, b)
	}
}

func (s *trainStore) newHeld(r *rings) *held {
	if n := len(s.held); n > 0 {
		h := s.held[n-1]
		s.held = s.held[:n-1]
		return h
	}
	return &held{r: r}
}

func (s *trainStore) putHeld(h *held) {
	if len(s.held) < maxSpare && cap(h.trains) <= maxSpare {
		s.held = append(s.held, h)
	}
}
