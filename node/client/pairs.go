package client

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// Pairs: memory by which two sockets of one user at one address exchange a busy flow without
// the daemon on the way (docs/pairs.md; docs/adr/0026-paired-rings.md says why so). Here is
// who gets one, its life, and what the daemon does about it while datagrams pass it.

const (
	// A flow is busy that sends busyDatagrams within busyWindow, busyWindows times with no
	// longer pause than busyPause in between.
	busyDatagrams = 256
	busyWindow    = 50 * time.Millisecond
	busyWindows   = 2
	busyPause     = 4 * busyWindow
	// offerAgain is the least time between two offers of one flow.
	offerAgain = time.Second
	// maxPairs bounds the pairs of one socket, in each direction.
	maxPairs = 8
	// pairOverhead is what a pair takes beside its data: the page of its words, and here.
	pairOverhead = 8 << 10
)

// busyFlow counts what a flow posts.
type busyFlow struct {
	sent    int
	windows uint8
	from    time.Duration // the window under way
	offered time.Duration // the last time; 0: never
}

// posted counts n datagrams, and reports whether the flow was found busy.
func (b *busyFlow) posted(now time.Duration, n int) bool {
	if now-b.from >= busyWindow {
		if b.sent < busyDatagrams || now-b.from >= busyPause {
			b.windows = 0
		}
		b.sent, b.from = 0, now
	}
	was := b.sent
	if b.sent += n; was >= busyDatagrams || b.sent < busyDatagrams {
		return false
	}
	if b.windows++; b.windows < busyWindows || b.offered != 0 && now-b.offered < offerAgain {
		return false
	}
	b.windows, b.offered = 0, now
	return true
}

// pairState is how far a pair is. It only goes up.
type pairState uint8

const (
	pairMade    pairState = iota // its memory is being made
	pairOffered                  // both clients are to map it
	pairSealing                  // both have
	pairOpening                  // the reader is to look at it
	pairOpen                     // the sender may use it
	pairClosing                  // nothing more gets in; both are to let go of it
	pairGone
)

// The ends of a pair.
const (
	sends = iota
	reads
)

// pair is one flow's. The lock of its address guards it, but for mem's descriptors, which
// who makes and seals it has to himself.
type pair struct {
	id      uint64
	front   *Front
	host    *datagram.Local
	bytes   int
	account *quota.Account // of the user of both
	uid     uint32
	rest    uint8 // buried: looks at the table between two questions; guarded by pairTable.mu
	skip    uint8 // buried: and how many are left; guarded by pairTable.mu

	ends   [2]*ringSock
	told   [2]bool // the offer, with descriptors: before that the client cannot have mapped it
	mapped [2]bool
	gone   [2]bool // the client has let go of it, or is gone
	state  pairState
	busy   bool // memory is being made or sealed
	sealed bool // the words may be touched
	aside  int  // of the reader's buffer
	mem    *shm.Pair

	since time.Duration // in this state
	heard shm.PairFigures
	quiet int // looks in a row that found next to nothing
	last  uint64
}

// socketPairs is what a socket has of pairs. The lock of its address guards it.
type socketPairs struct {
	wanted  bool // the client takes offers
	all     map[uint64]*pair
	out, in map[uint16]*pair // by the other end's port
	unused  map[uint16]unusedPair
}

// unusedPair is how often in a row the pair of a flow was closed again without having been used, at
// last when: a client may send in ways that do not use it.
type unusedPair struct {
	times uint8
	last  time.Duration
}

// maxUnused bounds the doublings of offerAgain, and the flows that are remembered.
const (
	maxUnused      = 6
	maxUnusedFlows = 64
)

// used notes whether a pair to port was.
func (s *socketPairs) used(now time.Duration, port uint16, used bool) {
	if used || len(s.unused) >= maxUnusedFlows {
		delete(s.unused, port)
		return
	}
	if s.unused == nil {
		s.unused = map[uint16]unusedPair{}
	}
	u := s.unused[port]
	s.unused[port] = unusedPair{min(u.times+1, maxUnused), now}
}

// soon reports whether the flow to port had pairs for nothing, and is not offered one yet.
func (s *socketPairs) soon(now time.Duration, port uint16) bool {
	u := s.unused[port]
	return u.times > 0 && now-u.last < offerAgain<<u.times
}

func (s *socketPairs) mark(sport uint16, placed uint64) {
	if p := s.in[sport]; p != nil && p.sealed && p.state < pairGone {
		p.mem.SetMark(placed)
	}
}

// each calls f for what lies in each pair that the socket reads. The order is the same each time: who
// lists by pages counts what it has had.
func (s *socketPairs) each(f func(src netip.AddrPort, u rds.PairedUnread)) {
	var l [maxPairs]*pair
	n := 0
	for _, p := range s.in {
		l[n] = p
		n++
	}
	slices.SortFunc(l[:n], func(a, b *pair) int { return cmp.Compare(a.id, b.id) })
	for _, p := range l[:n] {
		if u := p.unread(); u.Datagrams > 0 {
			f(p.ends[sends].sock.Addr(), u)
		}
	}
}

// unread is what its clients say lies in the pair: nothing when nobody reads it any more.
func (p *pair) unread() (u rds.PairedUnread) {
	if p.sealed && p.state < pairGone && !p.gone[reads] {
		f := p.mem.Figures()
		fill, _ := p.mem.Fill()
		// At most shm.MaxTrain datagrams in each record, of 8 bytes at least.
		if n := f.Sent - f.Read; n > 0 && n <= fill/8*shm.MaxTrain {
			u = rds.PairedUnread{Datagrams: int(n), Bytes: int(min(f.SentBytes-f.ReadBytes, fill))}
		}
	}
	return u
}

// offerPair makes a pair for the flow to port of this address, if there may be one. The
// lock is held, on the reactor's thread.
func (r *ringSock) offerPair(now time.Duration, port uint16) {
	to := r.pairReader(port)
	if to == nil || r.pairs.soon(now, port) {
		return
	}
	room := min(to.sock.PairRoom(), shm.MaxPairBytes)
	bytes := shm.MinPairBytes
	for 2*bytes <= room {
		bytes *= 2
	}
	if bytes > room {
		return
	}
	f := r.front
	p := &pair{front: f, host: r.host, ends: [2]*ringSock{r, to}, bytes: bytes, uid: r.s.id.UID, busy: true, since: now}
	p.account = f.deps.User(r.s.id)
	if p.account.Take(quota.Regions, p.charge()) != nil {
		p.account.Close()
		return
	}
	if !to.sock.SetAside(now, bytes) {
		p.account.Give(quota.Regions, p.charge())
		p.account.Close()
		return
	}
	p.aside = bytes
	p.id = f.pairs.add(f, p)
	r.pairs.add(p, &r.pairs.out, port)
	to.pairs.add(p, &to.pairs.in, r.sock.Addr().Port())
	f.deps.Count.PairsOffered.Add(1)
	r.aside(p.make, nil)
}

func (s *socketPairs) add(p *pair, by *map[uint16]*pair, port uint16) {
	if s.all == nil {
		s.all = map[uint64]*pair{}
	}
	if *by == nil {
		*by = map[uint16]*pair{}
	}
	s.all[p.id], (*by)[port] = p, p
}

// pairReader is the socket at port, if r may have a pair with it; else nil.
func (r *ringSock) pairReader(port uint16) *ringSock {
	sock := r.host.Socket(port)
	if sock == nil || sock == r.sock || sock.SendersWait() {
		return nil
	}
	to, ok := sock.Options().Data.(*ringSock)
	switch {
	case !ok || !to.pairs.wanted || !to.begun || to.closed || to.hostile != nil || r.closed:
	// Of another user's memory a reader could hold as much as it likes to be sent.
	case to.s.id.UID != r.s.id.UID || r.s.id.ForeignUser:
	case r.pairs.out[port] != nil || len(r.pairs.out) >= maxPairs || len(to.pairs.in) >= maxPairs:
	case to.pairs.in[r.sock.Addr().Port()] != nil: // of a socket before r, which the reader still has
	case r.host.Traced() || r.front.sockets.draining() != nil:
	case r.front.seals.Behind(r.s.id.UID) >= maxPairs: // those before it do not get sealed
	case !r.front.pairs.mayAdd(r.s.id.UID):
	default:
		return to
	}
	return nil
}

func (p *pair) charge() int64 { return int64(p.bytes) + pairOverhead }

// make is a goroutine's.
func (p *pair) make() {
	err := p.front.deps.FDs.Room(base.PairFDs+1, base.KeepOfClients)
	if err == nil {
		err = p.front.step("pair")
	}
	var mem *shm.Pair
	if err == nil {
		mem, err = shm.CreatePair(p.id, p.bytes)
	}
	if err != nil {
		p.front.deps.Log.Debug("no pair was made", "error", err)
	}
	p.lockAnd(func(now time.Duration) {
		p.busy, p.mem = false, mem
		if err != nil || p.state == pairClosing {
			p.gone = [2]bool{true, true} // nobody has heard of it
			p.close(now)
			p.end()
			return
		}
		p.enter(now, pairOffered)
		for i, r := range p.ends {
			r.react.DoFor(r, func() { p.offer(i) })
		}
	})
}

func (p *pair) lockAnd(f func(now time.Duration)) {
	_, now := p.host.Lock()
	f(now)
	p.host.Unlock()
}

func (p *pair) enter(now time.Duration, s pairState) { p.state, p.since = s, now }

// offer tells one end of it. On that end's thread, without the lock.
func (p *pair) offer(end int) {
	r := p.ends[end]
	var fds [2]int
	var offered bool
	p.lockAnd(func(time.Duration) {
		if offered = p.state == pairOffered && !r.closed; offered {
			fds = [2]int{p.mem.WordsFD, p.mem.DataFD}
			if end == reads {
				fds[1] = p.mem.ReadFD
			}
		}
	})
	told := offered && r.ctl.offer(p.step(rdsdv1.PairState_PAIR_STATE_OFFERED), fds[:])
	p.lockAnd(func(now time.Duration) {
		if p.told[end] = told; told {
			return
		}
		p.gone[end] = true // it has not heard of it
		p.close(now)
		p.end()
	})
}

// offer writes a message with descriptors, now or not at all.
func (c *ringControl) offer(m *rdsdv1.ServerMessage, fds []int) bool {
	data, err := datagramCodec{}.Marshal(m)
	if err != nil {
		return false
	}
	defer data.Free()
	c.r.s.wmu.Lock()
	defer c.r.s.wmu.Unlock()
	done, err := c.ctl.Try(data.Materialize(), fds...)
	return err == nil && done
}

// step is a message about the pair.
func (p *pair) step(s rdsdv1.PairState) *rdsdv1.ServerMessage {
	m := &rdsdv1.PairStep{}
	m.SetId(p.id)
	m.SetState(s)
	if s == rdsdv1.PairState_PAIR_STATE_OFFERED {
		m.SetSource(EndpointPB(p.ends[sends].sock.Addr()))
		m.SetDestination(EndpointPB(p.ends[reads].sock.Addr()))
		m.SetDataBytes(uint64(p.bytes))
	}
	out := &rdsdv1.ServerMessage{}
	out.SetPair(m)
	return out
}

// tell says it to one end.
func (p *pair) tell(end int, s rdsdv1.PairState) {
	r, m := p.ends[end], p.step(s)
	r.react.DoFor(r, func() {
		if r.closed || !r.begun {
			return
		}
		r.ctl.say(m)
		if r.ctl.watch() != nil {
			r.close()
		}
	})
}

// pairAnswer takes what a client says of one of its pairs. On the reactor's thread.
func (r *ringSock) pairAnswer(m *rdsdv1.PairAnswer) (err error) {
	_, now := r.host.Lock()
	if p := r.pairs.all[m.GetId()]; p != nil { // else it is over, which the client has not heard
		end := sends
		if p.ends[reads] == r {
			end = reads
		}
		err = p.answered(now, end, m.GetState())
	}
	r.host.Unlock()
	return err
}

// answered takes what one end says. The lock is held.
func (p *pair) answered(now time.Duration, end int, s rdsdv1.PairState) error {
	switch {
	case s == rdsdv1.PairState_PAIR_STATE_GONE:
		p.letGo(now, end)
	case p.state == pairClosing: // it has not heard
	// A number can be guessed. When both have mapped it the descriptors are closed, which must not
	// be while they are being sent.
	case s == rdsdv1.PairState_PAIR_STATE_MAPPED && p.state == pairOffered && p.told[end]:
		if p.mapped[end] = true; p.mapped[sends] && p.mapped[reads] {
			p.enter(now, pairSealing)
			p.busy = true
			p.front.seals.Do(p.ends[end].s.id.UID, p.seal)
		}
	case s == rdsdv1.PairState_PAIR_STATE_OPEN && p.state == pairOpening && end == reads:
		p.enter(now, pairOpen)
		p.front.deps.Count.PairsOpened.Add(1)
		p.tell(sends, rdsdv1.PairState_PAIR_STATE_OPEN)
	default:
		return rdserr.With(rdserr.ErrInvalid, "%v of a pair that is not so far", s)
	}
	return nil
}

// seal is a goroutine's, which nobody waits for (rings_seal.go).
func (p *pair) seal() {
	err := p.front.step("seal a pair")
	if err == nil {
		err = p.mem.Seal()
	}
	p.mem.Lent()
	if err != nil {
		p.front.deps.Log.Debug("a pair is not sealed", "error", err)
	}
	var over bool
	p.lockAnd(func(now time.Duration) {
		p.busy = false
		if p.sealed = err == nil; p.sealed && p.state == pairSealing {
			// What came by the daemon so far comes before what will be in the pair.
			p.mem.SetMark(p.ends[reads].End.Placed())
			p.enter(now, pairOpening)
			p.tell(reads, rdsdv1.PairState_PAIR_STATE_OPEN)
			return
		}
		if p.sealed {
			p.mem.Shut()
		}
		p.close(now)
		over = p.over()
	})
	if over { // not aside: the daemon may be ending, and wait for what is there already
		p.front.pairs.bury(p)
	}
}

// close has nothing more get in, and both ends let go. The lock is held.
func (p *pair) close(now time.Duration) {
	if p.state >= pairClosing {
		return
	}
	p.enter(now, pairClosing)
	if p.sealed {
		p.mem.Shut()
	}
	p.front.deps.Count.PairsClosed.Add(1)
	for end := range p.ends {
		if !p.gone[end] {
			p.tell(end, rdsdv1.PairState_PAIR_STATE_CLOSED)
		}
	}
}

// letGo notes that an end has let go of the pair. The lock is held.
func (p *pair) letGo(now time.Duration, end int) {
	if end == reads {
		if p.sealed {
			p.mem.Shut() // before it is looked how much there is
		}
		p.ends[reads].sock.PairedDropped(uint64(p.unread().Datagrams)) // it went with the reader
	}
	p.gone[end] = true // before hear, which says what is unread in the others
	p.hear()
	p.close(now)
	if end == reads && p.aside > 0 {
		// What was put was taken, or went with the reader.
		p.ends[reads].sock.SetAside(now, -p.aside)
		p.aside = 0
	}
	p.end()
}

// leavePairs is for a socket that is being closed: what it has put is still read by the
// other end. The lock is held.
func (r *ringSock) leavePairs(now time.Duration) {
	for _, p := range r.pairs.all {
		if p.ends[reads] == r {
			p.letGo(now, reads)
		} else {
			p.letGo(now, sends)
		}
	}
}

// end buries a pair that nobody has any more. The lock is held.
func (p *pair) end() {
	if p.over() {
		p.ends[sends].aside(func() { p.front.pairs.bury(p) }, nil)
	}
}

// over forgets a pair that nobody has any more, and reports whether it did, once. The lock is held.
func (p *pair) over() bool {
	if p.state != pairClosing || p.busy || !p.gone[sends] || !p.gone[reads] {
		return false
	}
	p.state = pairGone
	from, to := p.ends[sends], p.ends[reads]
	from.pairs.used(p.host.StepTime(), to.sock.Addr().Port(), p.heard.Sent > 0)
	if p.aside > 0 {
		to.sock.SetAside(p.host.StepTime(), -p.aside)
		p.aside = 0
	}
	delete(from.pairs.all, p.id)
	delete(to.pairs.all, p.id)
	for port, q := range from.pairs.out {
		if q == p {
			delete(from.pairs.out, port)
		}
	}
	for port, q := range to.pairs.in {
		if q == p {
			delete(to.pairs.in, port)
		}
	}
	return true
}

// ringReaders wakes the readers of this socket's pairs for which it has news. On the
// reactor's thread.
func (r *ringSock) ringReaders() {
	r.End.TakeNudges() // first: what comes now is seen then
	var bells [maxPairs]*shm.Alarm
	n := 0
	r.host.Lock()
	for _, p := range r.pairs.out {
		if p.sealed && p.state < pairGone && !p.gone[reads] && p.mem.Nudged() {
			bells[n] = p.ends[reads].alarm
			n++
		}
	}
	r.host.Unlock()
	for _, a := range bells[:n] {
		a.Ring() // nothing, when its socket has been closed meanwhile
	}
	r.share.Nudges -= 1 + n
	r.front.deps.Count.PairWakes.Add(uint64(n))
}
