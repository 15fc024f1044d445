//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
)

// Pairs: memory by which this socket and another one of this user and address exchange a busy
// flow without the daemon on the way (docs/pairs.md). The daemon offers one; from then on
// a send to that destination goes there if it can, and a receive looks there as well. Nobody
// who calls has to know.

// pairMem is a pair's mapping. It stays while somebody may look at it: the end that has it,
// lists of it that calls wait with, and senders that wait for room.
type pairMem struct {
	p    *shm.Pair
	refs atomic.Int32
}

func (m *pairMem) unref() {
	if m.refs.Add(-1) == 0 {
		m.p.Close()
	}
}

// pairOffer is a pair that is mapped and not open yet. Of the link's reading goroutine.
type pairOffer struct {
	mem  *pairMem
	role shm.PairRole
	peer netip.AddrPort
}

// pairOut is the sender's end of a pair. Guarded by rings.txMu.
type pairOut struct {
	id  uint64
	mem *pairMem
	s   *shm.PairSender
}

// pairIn is the reader's end. Guarded by rings.rxMu, but for mem and src.
type pairIn struct {
	id     uint64
	mem    *pairMem
	r      *shm.PairReceiver
	src    netip.AddrPort
	closed bool // the daemon has said so
}

// pairSet is the pairs that a link reads from. It does not change; a link gets another one.
type pairSet struct {
	in      []*pairIn
	sources []shm.PairSource // the same
	refs    atomic.Int32
}

func (s *pairSet) unref() {
	if s == nil || s.refs.Add(-1) != 0 {
		return
	}
	for _, p := range s.in {
		p.mem.unref()
	}
}

// from is the pair that datagrams of src come by; nil: none.
func (s *pairSet) from(src netip.AddrPort) *pairIn {
	for _, p := range s.in {
		if p.src == src {
			return p
		}
	}
	return nil
}

// setPairsLocked has the link read from other pairs. rxMu is held.
func (l *ringLink) setPairsLocked(in []*pairIn) {
	old := l.in
	l.in = nil
	if len(in) > 0 {
		s := &pairSet{in: in}
		s.refs.Store(1)
		for _, p := range in {
			p.mem.refs.Add(1)
			s.sources = append(s.sources, shm.PairSource{PairReceiver: p.r, Src: p.src})
		}
		l.in = s
	}
	old.unref()
}

// pairStep takes what the daemon says of a pair. fds stay the caller's. Of the link's reading
// goroutine.
func (l *ringLink) pairStep(m *rdsdv1.PairStep, fds []int) {
	id := m.GetId()
	switch m.GetState() {
	case rdsdv1.PairState_PAIR_STATE_OFFERED:
		if l.takeOffer(m, fds) {
			l.sayPair(id, rdsdv1.PairState_PAIR_STATE_MAPPED)
			return
		}
	case rdsdv1.PairState_PAIR_STATE_OPEN:
		o := l.offers[id]
		delete(l.offers, id)
		if o == nil {
			return
		}
		// Sealed by now: before, an access might have had to wait for the other client.
		if o.mem.p.Sealed(id) && l.openPair(id, o) {
			return
		}
		o.mem.unref()
	case rdsdv1.PairState_PAIR_STATE_CLOSED:
		if o := l.offers[id]; o != nil {
			delete(l.offers, id)
			o.mem.unref()
		} else if !l.closePair(id) {
			return // what is in it is read first
		}
	default:
		return // of a newer daemon
	}
	l.sayPair(id, rdsdv1.PairState_PAIR_STATE_GONE)
}

func (l *ringLink) takeOffer(m *rdsdv1.PairStep, fds []int) bool {
	o := &pairOffer{role: shm.PairSends, peer: endpointFromProto(m.GetDestination())}
	if endpointFromProto(m.GetSource()) != l.local {
		o.role, o.peer = shm.PairReads, endpointFromProto(m.GetSource())
	}
	if len(fds) != 2 || l.offers[m.GetId()] != nil || len(l.offers) >= maxOffers {
		return false
	}
	p, err := shm.OpenPair(fds[0], fds[1], m.GetDataBytes(), o.role)
	if err != nil {
		return false
	}
	o.mem = &pairMem{p: p}
	o.mem.refs.Store(1)
	if l.offers == nil {
		l.offers = map[uint64]*pairOffer{}
	}
	l.offers[m.GetId()] = o
	return true
}

// maxOffers bounds what a daemon can have this process map without opening it.
const maxOffers = 64

// openPair has the pair used from now on. It takes over the reference if it returns true.
func (l *ringLink) openPair(id uint64, o *pairOffer) bool {
	r := l.r
	if o.role == shm.PairSends {
		r.txMu.Lock()
		defer r.txMu.Unlock()
		// The link may have ended meanwhile, and its pairs with it.
		if r.tx != l || l.out[o.peer] != nil {
			return false
		}
		if l.out == nil {
			l.out = map[netip.AddrPort]*pairOut{}
		}
		l.out[o.peer] = &pairOut{id, o.mem, shm.NewPairSender(o.mem.p)}
		return true
	}
	r.rxMu.Lock()
	ok := r.rx == l && (l.in == nil || l.in.from(o.peer) == nil)
	if ok {
		var in []*pairIn
		if l.in != nil {
			in = slices.Clone(l.in.in)
		}
		l.setPairsLocked(append(in, &pairIn{id: id, mem: o.mem, r: shm.NewPairReceiver(o.mem.p), src: o.peer}))
		r.rxSeq.Add(1) // whoever waits has to look there as well
		r.waiters.wake(shm.ClientWaitsRecv)
		o.mem.unref() // the set has its own
	}
	r.rxMu.Unlock()
	// Said when everything that comes from now on is seen: only then may the sender use it, or
	// what it sends by the daemon later could be read first.
	if ok {
		l.sayPair(id, rdsdv1.PairState_PAIR_STATE_OPEN)
	}
	return ok
}

// closePair ends the use of a pair. It returns false when there is something left to be read.
func (l *ringLink) closePair(id uint64) (gone bool) {
	r := l.r
	r.txMu.Lock()
	for dst, o := range l.out {
		if o.id == id {
			l.dropOutLocked(dst, o)
			r.txMu.Unlock()
			return true
		}
	}
	r.txMu.Unlock()
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	if l.in != nil && r.rx == l {
		for _, p := range l.in.in {
			if p.id == id && !p.closed { // it may be said again
				p.closed = true
				l.ending++
				// Who waits may not have been told of what was put last: the sender died before it
				// did, or its daemon let go of it before the reader was rung.
				r.rxSeq.Add(1)
				r.waiters.wake(shm.ClientWaitsRecv)
			}
		}
		l.sweepPairsLocked()
	}
	return false // sweepPairsLocked says it
}

// dropOutLocked forgets the sender's end of a pair. txMu is held.
func (l *ringLink) dropOutLocked(dst netip.AddrPort, o *pairOut) {
	if f := l.send.Known(dst); f != nil {
		f.Pair = nil
	}
	delete(l.out, dst)
	o.mem.unref()
}

// sweepPairsLocked lets go of pairs that are closed and empty. rxMu is held.
func (l *ringLink) sweepPairsLocked() {
	// A record that is half read is at the front of its pair, where it could be found to be another
	// by now: the sender can still write there.
	l.r.keepFrontLocked()
	var left []*pairIn
	for _, p := range l.in.in {
		if p.closed {
			p.r.Last(l.region.RecvTail().Load())
		}
		if p.closed && p.r.Over() {
			l.ending--
			go l.sayPair(p.id, rdsdv1.PairState_PAIR_STATE_GONE) // ends at once; Socket.mu comes before rxMu
			continue
		}
		left = append(left, p)
	}
	if len(left) < len(l.in.in) {
		l.setPairsLocked(left)
		l.r.rxSeq.Add(1) // calls that wait hold the memory until they look again
		l.r.waiters.wake(shm.ClientWaitsRecv)
	}
}

// sayPair tells the daemon how far this end is.
func (l *ringLink) sayPair(id uint64, s rdsdv1.PairState) {
	a := &rdsdv1.PairAnswer{}
	a.SetId(id)
	a.SetState(s)
	m := &rdsdv1.ClientMessage{}
	m.SetPair(a)
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cur == l {
		l.ctl.push(m)
		l.writeLocked()
	}
}

// dropOffers is for a link that has ended.
func (l *ringLink) dropOffers() {
	for _, o := range l.offers {
		o.mem.unref()
	}
	l.offers = nil
}

// --- sending ----------------------------------------------------------------------

// pairedLocked is the pair that a datagram of n bytes to f may go by now; nil: it goes by the
// daemon. Behind what went by the daemon nothing may go by a pair before that is placed.
func (r *rings) pairedLocked(l *ringLink, f *shm.Flow, n int) *shm.PairSender {
	if len(l.out) == 0 {
		return nil
	}
	s := f.Pair
	if s == nil {
		o := l.out[f.Dst]
		if o == nil {
			return nil
		}
		s = o.s
		f.Pair = s
	}
	if f.Out() > 0 && l.send.EventsWait() {
		r.takeEventsLocked(l)
	}
	if !s.May(f.Out(), n) {
		return nil
	}
	return s
}

// putRunLocked puts the first of ds into a pair, as many as make one record; 0: there is no
// room, or it is closed.
func (r *rings) putRunLocked(l *ringLink, s *shm.PairSender, ds []Datagram, tag uint64) int {
	each := len(ds[0].Payload)
	most := min(len(ds), shm.MaxTrain)
	if each > 0 {
		most = min(most, max(1, min(s.Most(), shm.MaxTrainBytes)/each))
	}
	n := 1
	for n < most && len(ds[n].Payload) == each && ds[n].Addr == ds[0].Addr {
		n++
	}
	b := s.Begin(n * each)
	if b == nil {
		return 0
	}
	fillTrain(b, ds[:n], shm.KindEach)
	if !r.shownLocked(l, s, len(b), n, tag) {
		return 0
	}
	return n
}

// putOneLocked puts a datagram into a pair; false: it has to go by the daemon.
func (r *rings) putOneLocked(l *ringLink, s *shm.PairSender, p []byte, tag uint64) bool {
	b := s.Begin(len(p))
	if b == nil {
		return false
	}
	copyBytes(b, p)
	return r.shownLocked(l, s, len(p), 1, tag)
}

// shownLocked shows the record that was begun, and reports whether it got in.
func (r *rings) shownLocked(l *ringLink, s *shm.PairSender, bytes, n int, tag uint64) bool {
	if !s.Put(bytes, n) {
		return false
	}
	if s.Awaken() {
		l.send.Nudge()
	}
	// Delivered is: placed where the receiver can read it.
	if r.cfg.outcomes {
		r.outcomes.add(tag, uint64(n), Delivered, "")
		r.txSeq.Add(1)
		r.waiters.wake(shm.ClientWaitsEvent)
	}
	return true
}

// pairPatience is how long a send that may wait looks for room in a pair. The daemon is
// slower than a reader that reads.
const pairPatience = 200 * time.Microsecond

// awaitPairLocked waits for some room in the pair of f, for a moment. txMu is released meanwhile: what the
// caller knows has to be looked up again, and a pass of a batch begins anew.
func (r *rings) awaitPairLocked(l *ringLink, f *shm.Flow) {
	o := l.out[f.Dst]
	if o == nil {
		return
	}
	o.mem.refs.Add(1)
	want := o.mem.p.Bytes / 4
	r.txMu.Unlock()
	for begun := time.Now(); ; {
		fill, closed := o.mem.p.Fill()
		if closed || o.mem.p.Bytes-fill >= want {
			break
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if time.Since(begun) >= pairPatience {
			break
		}
	}
	r.txMu.Lock()
	o.mem.unref()
}

// fullLocked is for a datagram that found no room in the pair: it says whether to try all over
// again, having waited for some.
func (r *rings) fullLocked(l *ringLink, f *shm.Flow, s *shm.PairSender, wait bool) (again bool) {
	switch {
	case s.Over():
		return false
	case wait:
		r.awaitPairLocked(l, f)
		return true
	}
	s.GiveUp()
	return false
}

// dropPairsLocked ends the sender's ends: what was put is still read. txMu is held.
func (l *ringLink) dropPairsLocked() {
	for dst, o := range l.out {
		o.mem.p.Shut()
		l.dropOutLocked(dst, o)
	}
}

// --- receiving --------------------------------------------------------------------

const (
	// maxPrivate bounds copies of what came by pairs: what is borrowed, and what a Request has
	// looked through.
	maxPrivate = 8 << 20
)

// nextLocked says where the next train is: in a pair (p), or in the receive ring (ok), with
// its descriptor in l.desc: a variable of the caller's would be allocated, for the ring is behind an interface.
func (r *rings) nextLocked(l *ringLink) (p *pairIn, rec shm.PairRecord, ok bool, err error) {
	in := l.in
	if in == nil {
		ok, err = l.recv.Peek(&l.desc)
		return nil, rec, ok, err
	}
	i, rec, ok, err := l.order.Next(l.recv, in.sources, &l.desc)
	if i >= 0 {
		p = in.in[i]
	} else if !ok && err == nil && r.lastPump {
		// The daemon is gone, and what it had placed is taken: nothing is to be read before the rest.
		for _, p := range in.in {
			if rec, last := p.r.Peek(^uint64(0)); last {
				return p, rec, false, nil
			}
		}
	}
	return p, rec, ok, err
}

// pairTrainLocked makes a train of what stands in a pair.
func (r *rings) pairTrainLocked(l *ringLink, p *pairIn, rec shm.PairRecord) *train {
	l.order.FromPair()
	t := r.spare.newTrain()
	t.l, t.src, t.refs, t.paired, t.pair, t.rec = l, p.src, 1, true, p, rec
	t.lens, t.rest = shm.Walk(rec.Word, rec.Body)
	return t
}

// keepLocked copies what is left of a train in a pair to memory of this process, where it stays as
// it is, and gives its room back.
func (r *rings) keepLocked(t *train) {
	if t.pair == nil {
		return
	}
	if r.lastPump { // it may be read late, so it has no more memory than it needs
		t.rest = r.own.clone(t.rest)
	} else {
		t.own = r.spare.newMemory(len(t.rest))
		copyBytes(t.own, t.rest)
		t.rest = t.own
		r.private += cap(t.own)
	}
	t.pair.r.Take(&t.rec)
	t.pair = nil
}

// keepFrontLocked is keepLocked for the train that is half read. No other one in halfRead lies in a pair.
func (r *rings) keepFrontLocked() {
	if r.halfRead.len() > 0 {
		r.keepLocked(*r.halfRead.front())
	}
}

// freePairedLocked is freeLocked for a train that came by a pair.
func (r *rings) freePairedLocked(t *train) {
	if t.pair != nil {
		t.pair.r.Take(&t.rec)
		t.pair = nil
		return
	}
	r.left -= t.left
	if t.own != nil {
		r.private -= cap(t.own)
		r.spare.putMemory(t.own)
		t.own = nil
	}
}

// shutPairsLocked has nothing more get in.
func (l *ringLink) shutPairsLocked() {
	if l.in != nil {
		for _, p := range l.in.in {
			p.mem.p.Shut()
		}
	}
}
