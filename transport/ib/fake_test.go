package ib

import (
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
)

// fabric joins fake devices: what one posts is carried out in the memory of another, on the
// reactor of the one that posts. It does what a device may do and a link has to bear: it reads
// and writes memory late, mixes completions of the two queues, has few places, flushes when it
// is told to.
type fabric struct {
	mu      sync.Mutex // guards everything of all its devices
	devices map[netip.Addr]*fakeVerbs
	ports   map[netip.AddrPort]*fakeListener
	port    uint16
	number  uint32
}

func newFabric() *fabric {
	return &fabric{devices: map[netip.Addr]*fakeVerbs{}, ports: map[netip.AddrPort]*fakeListener{}, port: 30000, number: 1}
}

// fakeVerbs is a device. Its exported fields are set before it is used.
type fakeVerbs struct {
	Slow      bool          // flushed work completes when flush is called
	Mix       *rand.Rand    // completions of the two queues come in any order
	Few       int           // Poll brings at most so many
	Refuse    error         // of memory and of queue pairs
	Most      int           // bytes of Memory at a time, if not 0; more are refused
	Window    int           // places of the send queue that the device has less than it said
	RejectAll uint16        // reason
	holdRTU   chan struct{} // connections are established when it is closed
	dialled   func(*fakeQP) // called before Dial returns

	fab     *fabric
	r       *reactor.Reactor
	info    Info
	rnd     *rand.Rand
	own     extents // Memory and Adopt
	memory  int     // bytes of Memory
	qps     map[*fakeQP]bool
	posts   int // doorbells
	recvs   int // calls of Receive
	domains int
}

// add makes a device that can do everything.
func (f *fabric) add(t testing.TB, addr string) *fakeVerbs {
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	v := &fakeVerbs{fab: f, r: r, rnd: rand.New(rand.NewSource(int64(len(f.devices) + 1))), qps: map[*fakeQP]bool{}}
	v.info = Info{Name: "fake", Addr: netip.MustParseAddr(addr), MTU: 4096, MaxSends: 1024, MaxRecvs: 1024,
		Caps: Caps{AnyMemory: true, Places: true, Faults: true, PeerRevokes: true, Fills: true, Guards: true, SecretKeys: true}}
	f.devices[v.info.Addr] = v
	return v
}

func (v *fakeVerbs) Info() Info     { return v.info }
func (v *fakeVerbs) Thread() Thread { return v.r }
func (v *fakeVerbs) Close() error   { return nil }

func (v *fakeVerbs) Memory(n int) ([]byte, func(), error) {
	v.fab.mu.Lock()
	defer v.fab.mu.Unlock()
	if v.Refuse != nil {
		return nil, nil, v.Refuse
	}
	if v.Most > 0 && n > v.Most {
		return nil, nil, errMost
	}
	b := make([]byte, n)
	v.own.add(b)
	v.memory += n
	return b, func() {
		v.fab.mu.Lock()
		defer v.fab.mu.Unlock()
		v.own.remove(b)
		v.memory -= n
	}, nil
}

func (v *fakeVerbs) Adopt(b []byte) (func(), error) {
	v.fab.mu.Lock()
	defer v.fab.mu.Unlock()
	if v.Refuse != nil {
		return nil, v.Refuse
	}
	v.own.add(b)
	return func() {
		v.fab.mu.Lock()
		defer v.fab.mu.Unlock()
		v.own.remove(b)
	}, nil
}

// flush completes what a Slow device has not.
func (v *fakeVerbs) flush() {
	v.fab.mu.Lock()
	defer v.fab.mu.Unlock()
	v.Slow = false
	for q := range v.qps {
		if q.failed {
			q.flush()
		}
	}
}

// fakeDomain is a protection domain.
type fakeDomain struct {
	v         *fakeVerbs
	live      map[uint32]*fakeRegion
	guard     func([]byte) error
	withdrawn func(uint32, Withdrawal)
	closed    bool
}

type fakeRegion struct {
	p      []byte
	addr   uint64
	rights Rights
	full   int
}

func (v *fakeVerbs) NewDomain(withdrawn func(uint32, Withdrawal)) (Domain, error) {
	v.fab.mu.Lock()
	defer v.fab.mu.Unlock()
	if v.Refuse != nil {
		return nil, v.Refuse
	}
	v.domains++
	return &fakeDomain{v: v, live: map[uint32]*fakeRegion{}, withdrawn: withdrawn}, nil
}

func (d *fakeDomain) Guard(f func([]byte) error) { d.guard = f }

func (d *fakeDomain) Expose(b []byte, iova uint64, r Rights) (uint32, error) {
	d.v.fab.mu.Lock()
	defer d.v.fab.mu.Unlock()
	if d.v.Refuse != nil {
		return 0, d.v.Refuse
	}
	key := d.v.rnd.Uint32()
	for key == 0 || d.live[key] != nil {
		key = d.v.rnd.Uint32()
	}
	if !d.closed {
		d.live[key] = &fakeRegion{p: b, addr: iova, rights: r}
	}
	return key, nil
}

func (d *fakeDomain) Withdraw(key uint32) Withdrawal {
	d.v.fab.mu.Lock()
	defer d.v.fab.mu.Unlock()
	r := d.live[key]
	if r == nil {
		return Withdrawal{Known: true}
	}
	if d.v.info.Caps.Pending {
		d.v.r.Do(func() {
			d.v.fab.mu.Lock()
			w := d.end(key)
			d.v.fab.mu.Unlock()
			d.withdrawn(key, w)
		})
		return Withdrawal{State: Pending}
	}
	return d.end(key)
}

func (d *fakeDomain) end(key uint32) Withdrawal {
	w := Withdrawal{Known: d.v.info.Caps.Fills}
	if r := d.live[key]; r != nil && w.Known {
		w.Filled = r.full
	}
	delete(d.live, key)
	return w
}

func (d *fakeDomain) Close() {
	d.v.fab.mu.Lock()
	defer d.v.fab.mu.Unlock()
	d.closed = true
	clear(d.live)
	d.v.domains--
}

// fakeQP is a queue pair.
type fakeQP struct {
	v   *fakeVerbs
	d   *fakeDomain
	h   Handler
	cfg QPConfig
	num uint32

	param  Param // that it was connected with
	peer   *fakeQP
	failed bool
	closed bool
	said   bool // Disconnect was called
	sq     []WR // posted, not executed
	places int  // of the send queue that are taken
	rq     []Slot
	slots  int
	sdone  []Completion
	rdone  []Completion
	sold   []int // places that a completion of sdone gives back, beside it
	unsig  int
	told   bool // Ready has been called, and Poll has not come back with less
	due    bool // pump is to be called
	pumpF  func()
	readyF func()
	dead   Status // what the next work request ends with, when not OK
	hold   bool   // nothing is carried out
	refuse error  // of work and slots
	onPost func() // called at the beginning of Post
	after  func() // called at its end
}

func (d *fakeDomain) NewQP(cfg QPConfig, h Handler) (QP, error) {
	d.v.fab.mu.Lock()
	defer d.v.fab.mu.Unlock()
	if d.v.Refuse != nil {
		return nil, d.v.Refuse
	}
	if cfg.Sends > d.v.info.MaxSends || cfg.Recvs > d.v.info.MaxRecvs {
		return nil, &DepthError{Asked: cfg, Max: QPConfig{d.v.info.MaxSends, d.v.info.MaxRecvs}}
	}
	d.v.fab.number++
	q := &fakeQP{v: d.v, d: d, h: h, cfg: cfg, num: d.v.fab.number}
	q.pumpF, q.readyF = q.pump, q.ready
	d.v.qps[q] = true
	return q, nil
}

func (q *fakeQP) Number() uint32 { return q.num }

func (q *fakeQP) lock() {
	q.v.fab.mu.Lock()
	if q.closed {
		panic("a call of a queue pair that is closed")
	}
}

var errMost = errors.New("not so much memory at a time")

// badImm is what the device does not do.
const badImm = 0xbad

func (q *fakeQP) Post(wr []WR) (n int, err error) {
	if q.onPost != nil {
		q.onPost()
	}
	if q.after != nil {
		defer q.after()
	}
	q.lock()
	defer q.v.fab.mu.Unlock()
	q.v.posts++
	if q.refuse != nil {
		return 0, q.refuse
	}
	for i := range wr {
		if q.places >= q.cfg.Sends-q.v.Window {
			return i, nil
		}
		if wr[i].Imm == badImm {
			q.doPump() // what was posted before is carried out
			return i, errors.New("not that")
		}
		for _, p := range wr[i].Piece {
			if len(p) > 0 && !q.v.info.Caps.AnyMemory && !q.v.own.has(p) {
				return i, errors.New("that memory is not the device's")
			}
		}
		q.places++
		q.sq = append(q.sq, wr[i])
	}
	if q.failed {
		q.flush()
	} else {
		q.pumpSoon()
	}
	return len(wr), nil
}

func (q *fakeQP) Receive(s []Slot) (n int, err error) {
	q.lock()
	defer q.v.fab.mu.Unlock()
	q.v.recvs++
	if q.refuse != nil {
		return 0, q.refuse
	}
	for i := range s {
		if q.slots == q.cfg.Recvs {
			return i, nil
		}
		q.slots++
		q.rq = append(q.rq, s[i])
	}
	if q.failed {
		q.flush()
	} else if q.peer != nil {
		q.peer.pumpSoon()
	}
	return len(s), nil
}

func (q *fakeQP) Poll(c []Completion) (n int) {
	q.lock()
	defer q.v.fab.mu.Unlock()
	most := len(c)
	if q.v.Few > 0 {
		most = min(most, q.v.Few)
	}
	for n < most && len(q.sdone)+len(q.rdone) > 0 {
		send := len(q.sdone) > 0 && (len(q.rdone) == 0 || q.v.Mix == nil || q.v.Mix.Intn(2) == 0)
		if send {
			c[n] = q.sdone[0]
			q.places -= q.sold[0]
			q.sdone, q.sold = shift(q.sdone), shift(q.sold)
		} else {
			c[n] = q.rdone[0]
			q.slots--
			q.rdone = shift(q.rdone)
		}
		n++
	}
	if n < len(c) {
		q.told = false
		if len(q.sdone)+len(q.rdone) > 0 {
			q.tell()
		}
	}
	return n
}

// shift removes the first, in place.
func shift[T any](s []T) []T { return s[:copy(s, s[1:])] }

func (q *fakeQP) Disconnect() {
	q.lock()
	defer q.v.fab.mu.Unlock()
	if q.said {
		return
	}
	q.said = true
	q.fail(nil)
	if p := q.peer; p != nil && !p.failed {
		p.fail(io.EOF)
	}
}

func (q *fakeQP) Close() {
	q.lock()
	defer q.v.fab.mu.Unlock()
	if !q.failed || q.places > 0 || q.slots > 0 || len(q.sdone)+len(q.rdone) > 0 {
		panic(fmt.Sprintf("a queue pair is closed with %d sends and %d receives", q.places, q.slots))
	}
	q.closed = true
	delete(q.v.qps, q)
}

// fail has q fail; why is told if it is not nil.
func (q *fakeQP) fail(why error) {
	if q.failed {
		return
	}
	q.failed = true
	if !q.v.Slow {
		q.flush()
	}
	if why != nil {
		q.v.r.Do(func() { q.h.Ended(why) })
	}
}

func (q *fakeQP) flush() {
	for len(q.sq) > 0 {
		wr := q.sq[0]
		q.sq = shift(q.sq)
		q.sent(wr.ID, wr.Op, Flushed, true)
	}
	for len(q.rq) > 0 {
		q.got(Completion{Op: Recv, Status: Flushed})
	}
}

// sent ends a work request.
func (q *fakeQP) sent(id uint64, op Op, s Status, signal bool) {
	q.unsig++
	if !signal && s == OK {
		return
	}
	q.sdone = append(q.sdone, Completion{ID: id, Op: op, Status: s})
	q.sold = append(q.sold, q.unsig)
	q.unsig = 0
	q.tell()
}

// got ends a slot.
func (q *fakeQP) got(c Completion) {
	c.ID = q.rq[0].ID
	q.rq = shift(q.rq)
	q.rdone = append(q.rdone, c)
	q.tell()
}

func (q *fakeQP) tell() {
	if !q.told {
		q.told = true
		q.v.r.Do(q.readyF)
	}
}

func (q *fakeQP) ready() {
	q.v.fab.mu.Lock()
	closed := q.closed
	q.v.fab.mu.Unlock()
	if !closed {
		q.h.Ready()
	}
}

func (q *fakeQP) pumpSoon() {
	if !q.due && !q.failed {
		q.due = true
		q.v.r.Do(q.pumpF)
	}
}

// pump carries out what is posted, as far as the peer has slots.
func (q *fakeQP) pump() {
	q.v.fab.mu.Lock()
	defer q.v.fab.mu.Unlock()
	q.due = false
	q.doPump()
}

func (q *fakeQP) doPump() {
	for len(q.sq) > 0 && q.peer != nil && !q.failed && !q.hold {
		wr := &q.sq[0]
		status := q.dead
		if status == OK {
			var now bool
			if status, now = q.carry(wr); !now {
				return
			}
		}
		id, op, signal := wr.ID, wr.Op, wr.Flags&Signal != 0
		q.sq = shift(q.sq)
		q.sent(id, op, status, signal)
		if status != OK {
			q.fail(&StatusError{Op: op, Status: status})
		}
	}
}

// carry does one work request in the peer. false: not now.
func (q *fakeQP) carry(wr *WR) (s Status, now bool) {
	p := q.peer
	if p.failed {
		return RetryExceeded, true
	}
	n := 0
	for _, b := range wr.Piece {
		n += len(b)
	}
	c := Completion{Op: Recv, N: n}
	if wr.Op != Write {
		if len(p.rq) == 0 {
			return OK, false
		}
		if wr.Op != WriteImm && n > len(p.rq[0].Data) {
			p.got(Completion{Op: Recv, Status: LocalLength})
			p.fail(&StatusError{Op: Recv, Status: LocalLength})
			return RemoteInvalid, true
		}
	}
	switch wr.Op {
	case Write, WriteImm:
		dst, err := p.d.place(wr, n)
		if err == ErrNotNow {
			q.v.r.After(time.Millisecond, func() {
				q.v.fab.mu.Lock()
				defer q.v.fab.mu.Unlock()
				q.pumpSoon()
			})
			return OK, false
		}
		if err != nil {
			p.fail(p.fault(wr, n, err))
			return RemoteAccess, true
		}
		copyPieces(dst, wr)
		if wr.Op == WriteImm {
			c.Op, c.Has, c.Imm = RecvWriteImm, HasImm, wr.Imm
			if p.v.info.Caps.Places {
				c.Has |= HasPlace
				c.Key, c.Addr = wr.Key, wr.Addr
			}
			p.got(c)
		}
		return OK, true
	case SendInval:
		r := p.d.live[wr.Key]
		if r == nil || r.rights&PeerRevokes == 0 {
			p.fail(p.fault(wr, n, errors.New("there is no such key")))
			return RemoteAccess, true
		}
		c.Has, c.Key = HasInval, wr.Key
		if w := p.d.end(wr.Key); w.Known {
			c.Has |= HasFilled
			c.Filled = w.Filled
		}
	case SendImm:
		c.Has, c.Imm = HasImm, wr.Imm
	}
	copyPieces(p.rq[0].Data, wr)
	p.got(c)
	return OK, true
}

func copyPieces(dst []byte, wr *WR) {
	for _, b := range wr.Piece {
		dst = dst[copy(dst, b):]
	}
}

// place is where a write goes.
func (d *fakeDomain) place(wr *WR, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	r := d.live[wr.Key]
	if r == nil {
		return nil, errors.New("there is no such key")
	}
	off := wr.Addr - r.addr
	if wr.Addr < r.addr || off > uint64(len(r.p)) || uint64(n) > uint64(len(r.p))-off {
		return nil, errors.New("the key is for other memory")
	}
	dst := r.p[off:][:n]
	if d.guard != nil {
		if err := d.guard(dst); err != nil {
			return nil, err
		}
	}
	if end := int(off) + n; int(off) <= r.full && end > r.full {
		r.full = end
	}
	return dst, nil
}

var errGuard = errors.New("no room for that page")

// fault is what the owner of q is told about its peer.
func (q *fakeQP) fault(wr *WR, n int, err error) error {
	switch {
	case errors.Is(err, errGuard):
		return err
	case q.v.info.Caps.Faults:
		return &AccessError{Op: wr.Op, Key: wr.Key, Addr: wr.Addr, N: n, Err: err}
	}
	return &StatusError{Op: Recv, Status: OtherFailure}
}
