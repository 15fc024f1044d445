package simtest

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// app is a client with one socket: it sends, reads at its own pace, cancels,
// closes.
type app struct {
	n    *node
	s    *rds.Socket
	m    *memory // nil: the socket has a receive queue
	addr netip.AddrPort
	want bool // asks for outcomes

	tags     []*rec // by tag
	open     []*rec // accepted or waiting, no outcome yet
	accepted uint64
	told     uint64 // outcomes
	waiting  int
	flushes  int
	late     bool // it has not looked at its news yet

	queue     []*rec // what the socket should hand out next; nil: an empty datagram
	readEvery time.Duration
	readMax   int
	stopped   time.Duration // reads nothing before
	armed     bool
	quit      bool // sends nothing any more
	dead      bool
}

var unknownRec = &rec{} // placed through the loop: known when it is read

func (n *node) bindAll() {
	for i := range n.w.socketsPer {
		n.bind(uint16(4000 + i))
	}
}

// bindLate holds the ports of the former life for its applications, which come
// back one by one, most of them in time.
func (n *node) bindLate() {
	w := n.w
	ports := map[uint16]uint32{}
	for i := range w.socketsPer {
		ports[uint16(4000+i)] = 0
	}
	n.lock()
	n.eng.Hold(w.Now(), ports, w.Now()+time.Second)
	for i := range w.socketsPer {
		port := uint16(4000 + i)
		w.After(w.upTo(1200*time.Millisecond), n.guard(func() {
			if n.eng.Socket(port) == nil {
				n.bind(port)
				n.after()
			}
		}))
	}
}

func (n *node) bind(port uint16) *app {
	w := n.w
	o := rds.SocketOptions{SndBufBytes: w.drawBuf(), RcvBufBytes: w.drawBuf()}
	if w.flood {
		o.SndBufBytes, o.RcvBufBytes = 1<<(20+w.rng.Intn(3)), 1<<(10+w.rng.Intn(7))
	}
	a := &app{n: n, addr: netip.AddrPortFrom(n.addr, port), want: w.rng.Intn(8) != 0}
	o.Data = a
	if w.sinks > 0 && w.chance(w.sinks) {
		a.m = &memory{a: a, room: 1 << (8 + w.rng.Intn(14)), dests: map[netip.AddrPort]*dest{}, ring: w.hungry}
		if w.hungry && w.chance(2) { // none has too much alone
			a.m.room, o.RcvBufBytes = 64<<10, 24<<10
		}
		a.want, o.Sink = true, a.m // it is told every outcome
		if w.calm {
			a.m.room = max(a.m.room, 64<<10) // see endFaults
		}
		w.undrained++
	}
	n.lock()
	s, err := n.eng.Bind(port, o)
	if err != nil {
		w.fail("bind of %v: %v", a.addr, err)
		return nil
	}
	a.s = s
	if a.m != nil {
		a.m.ring0.Owner = a.m
		n.worker.Enter(&a.m.ring0)
	}
	w.m.ports[a.addr]++
	a.pace()
	if a.m == nil && w.rng.Intn(3) == 0 {
		s.SetMonitor(rds.Monitor{Mask: ^uint64(0), Clear: true, Set: w.rng.Intn(2) == 0})
	}
	n.apps = append(n.apps, a)
	return a
}

// pace draws how the app reads.
func (a *app) pace() {
	w := a.n.w
	a.readEvery, a.readMax, a.stopped = 0, 1<<30, 0
	if w.calm {
		return
	}
	k := w.rng.Intn(6)
	if w.flood {
		k = w.rng.Intn(2)
	}
	switch k {
	case 0: // slow
		a.readEvery, a.readMax = time.Duration(w.rng.Int63n(int64(30*time.Millisecond))), 1+w.rng.Intn(8)
	case 1: // stopped for a while
		a.stopped = w.Now() + time.Duration(w.rng.Int63n(int64(3*time.Second)))
	}
}

// --- sending ------------------------------------------------------------------

// send offers one datagram; wait says for how long it may wait to be
// accepted (negative: not at all, 0: for ever).
func (a *app) send(dst netip.AddrPort, size int, wait time.Duration) error {
	n, w := a.n, a.n.w
	n.lock()
	if a.m != nil {
		if !a.m.post(dst, []int{size}) {
			return rdserr.ErrWouldBlock
		}
		return nil
	}
	r := w.m.make(a.addr, dst, size)
	r.node, r.epoch = 0, n.epoch
	tag := uint64(len(a.tags))
	a.tags = append(a.tags, r)
	a.accept(r) // what comes through the loop is there before Send returns
	var err error
	var queued bool
	if wait < 0 {
		err = a.s.Send(w.Now(), dst, r.payload, tag, rds.Report(a.want))
	} else {
		deadline := time.Duration(0)
		if wait > 0 {
			deadline = w.Now() + wait
		}
		queued, err = a.s.SendWait(w.Now(), dst, r.payload, tag, rds.Report(a.want), deadline, a)
	}
	switch {
	case queued:
		a.unaccept(r)
		a.waiting++
	case err != nil:
		a.unaccept(r)
		r.refused = true
	}
	if err == nil && a.want {
		a.open = append(a.open, r)
	}
	w.mix(6, tag, uint64(size))
	if w.verbose != nil {
		w.trace("%v sends %v, wait %v: queued %v, %v", a.addr, r, wait, queued, err)
	}
	a.checkErr(err, dst, size)
	return err
}

// sendRun offers datagrams of these sizes in one call; those behind the first
// that cannot be accepted at once are forgotten.
func (a *app) sendRun(dst netip.AddrPort, sizes []int) {
	w := a.n.w
	var payload []byte
	var lengths []uint32
	tag := uint64(len(a.tags))
	for _, n := range sizes {
		r := w.m.make(a.addr, dst, n)
		r.epoch = a.n.epoch
		a.tags = append(a.tags, r)
		payload, lengths = append(payload, r.payload...), append(lengths, uint32(r.size))
		a.accept(r)
	}
	a.n.lock()
	n := a.s.SendRun(w.Now(), dst, payload, lengths, tag, rds.Report(a.want))
	clear(payload) // it is copied
	for i, r := range a.tags[tag:] {
		if i >= n {
			a.unaccept(r)
			r.refused = true
		} else if a.want {
			a.open = append(a.open, r)
		}
	}
	w.mix(11, tag, uint64(len(sizes)), uint64(n))
	if w.verbose != nil {
		w.trace("%v sends %d datagrams at once, the first %v: %d accepted", a.addr, len(sizes), a.tags[tag], n)
	}
}

func (a *app) accept(r *rec) {
	r.accepted = true
	a.accepted++
	a.n.w.m.total.accepted++
	if r.size == 0 {
		r.flow.anonSent++
	}
}

func (a *app) unaccept(r *rec) {
	r.accepted = false
	a.accepted--
	a.n.w.m.total.accepted--
	if r.size == 0 {
		r.flow.anonSent--
	}
}

func (a *app) checkErr(err error, dst netip.AddrPort, size int) {
	o := a.s.Options()
	switch {
	case err == nil, errors.Is(err, rdserr.ErrWouldBlock), errors.Is(err, rdserr.ErrCongested), errors.Is(err, rdserr.ErrNoMemory), errors.Is(err, rdserr.ErrTooMany):
	case errors.Is(err, rdserr.ErrTooLarge) && (size > o.SndBufBytes || size > 1<<20):
	default:
		a.n.w.fail("send of %d bytes from %v to %v: %v", size, a.addr, dst, err)
	}
}

// cancel drops what was sent to dst; port 0: to all ports there.
func (a *app) cancel(dst netip.AddrPort) {
	w := a.n.w
	var hit []*rec
	for _, r := range a.open {
		d := r.flow.dst
		if r.accepted && r.outcome == 0 && d.Addr() == dst.Addr() && (dst.Port() == 0 || d.Port() == dst.Port()) {
			hit = append(hit, r)
			if !r.cancelled {
				r.cancelled, r.leftFirst = true, r.left
			}
		}
	}
	a.n.lock()
	c, b, err := a.s.Cancel(w.Now(), dst)
	if err != nil {
		w.fail("D6: cancel: %v", err)
	}
	w.mix(7, uint64(c), uint64(b))
	w.trace("%v cancels %v: %d cancelled, %d begun", a.addr, dst, c, b)
	a.n.after()
	a.look()
	if dst.Addr() == a.addr.Addr() {
		return
	}
	cancelled := 0
	for _, r := range hit {
		if r.outcome == conn.Cancelled {
			cancelled++
		}
	}
	if a.want && cancelled != c {
		w.fail("D6: %d datagrams of %v cancelled, %d counted", cancelled, a.addr, c)
	}
	for _, r := range hit {
		if r.size > 0 && !r.leftFirst && r.outcome != conn.Cancelled {
			w.fail("D6: %v had not left when it was cancelled, and its outcome is %v", r, r.outcome)
		}
	}
}

// close gives the socket back; nobody will hear of its datagrams any more.
func (a *app) close() {
	n, w := a.n, a.n.w
	w.trace("%v closes", a.addr)
	for _, r := range a.open {
		if r.outcome == 0 {
			r.cancelled, r.gone = true, true
		}
	}
	a.dead = true
	w.m.ports[a.addr]++
	n.lock()
	a.s.Close(w.Now())
	if a.m != nil {
		n.worker.Exit(&a.m.ring0)
		a.m.gone()
	}
	for i, b := range n.apps {
		if b == a {
			n.apps = append(n.apps[:i], n.apps[i+1:]...)
			break
		}
	}
	n.after()
}

// died records that the process crashed.
func (a *app) died() {
	a.dead = true
	a.n.w.m.ports[a.addr]++
	if a.m != nil {
		a.m.gone()
	}
	for _, r := range a.open {
		if r.outcome == 0 {
			r.gone = true
		}
	}
}

// --- news ---------------------------------------------------------------------

// News is datagram.Waker: the application is told, and takes what there is at once or
// when it has a processor.
func (a *app) News() (goroutine bool) {
	w := a.n.w
	switch {
	case a.waiting > 0: // another of this address may read what was accepted: the model has to know
		a.late = true
		a.look()
	case a.late:
	case w.chance(8):
		a.late = true
		w.After(w.upTo(100*time.Microsecond), a.n.guard(a.look))
	default:
		a.late = true
		a.look()
	}
	return false
}

// look takes the news that there are.
func (a *app) look() {
	if !a.late || a.dead {
		return
	}
	a.n.lock()
	a.late = false
	a.news(a.s.Events())
	a.n.after()
}

func (a *app) news(ev int) {
	w := a.n.w
	w.mix(8, uint64(ev))
	if ev&rds.EvSends != 0 {
		for _, d := range a.s.SendsDone(nil) {
			r := a.tags[d.Tag]
			a.waiting--
			if r.accepted || r.refused || d.Batch != a {
				w.fail("D3: a second end of the waiting send of %v", r)
			}
			if d.Err == nil {
				a.accept(r)
			} else {
				r.refused = true
			}
			if w.verbose != nil {
				w.trace("%v: waiting send of %v: %v", a.addr, r, d.Err)
			}
		}
	}
	if ev&rds.EvOutcomes != 0 {
		for _, o := range a.s.Queue().Outcomes(nil) {
			for i := range uint64(o.Count) {
				if o.First+i >= uint64(len(a.tags)) {
					w.fail("D3: outcome for tag %d, which was never used", o.First+i)
					return
				}
				r := a.tags[o.First+i]
				if w.verbose != nil {
					w.trace("%v: outcome of %v: %v %v", a.addr, r, o.Kind, o.Why)
				}
				a.told++
				w.m.decided(r, o.Kind, o.Why)
			}
		}
		open := a.open[:0]
		for _, r := range a.open {
			if r.outcome == 0 && !r.refused {
				open = append(open, r)
			}
		}
		clear(a.open[len(open):])
		a.open = open
	}
	if ev&rds.EvFlushed != 0 {
		a.flushes -= len(a.s.Flushed())
		if a.flushes < 0 {
			w.fail("a flush was answered twice")
		}
	}
	if ev&rds.EvCongestion != 0 {
		a.s.CongestionNews()
	}
	if ev&rds.EvReadable != 0 {
		a.arm()
	}
	if ev&rds.EvWritable != 0 && a.m != nil {
		a.m.blocked = false
	}
}

// --- reading --------------------------------------------------------------------

// placed records that datagram i of a frame of count of them from src was put into the
// socket's queue.
func (a *app) placed(src netip.AddrPort, i, count int, payload []byte) {
	a.catchUp(count - i)
	var r *rec
	if src.Port() != 0 { // not a pong
		r = a.n.w.m.placedAt(a.n.epoch, src, a.addr, payload)
	}
	a.queue = append(a.queue, r)
}

// catchUp accounts for what came through the loop meanwhile.
func (a *app) catchUp(but int) {
	for n := a.s.Info().RecvN; len(a.queue) < n-but; {
		a.queue = append(a.queue, unknownRec)
	}
}

func (a *app) arm() {
	if a.armed || a.dead {
		return
	}
	a.armed = true
	w := a.n.w
	at := w.Now() + a.readEvery
	if w.rng.Intn(4) == 0 {
		at += time.Duration(w.rng.Int63n(int64(2 * time.Millisecond)))
	}
	w.At(max(at, a.stopped), a.n.guard(a.read))
}

func (a *app) read() {
	a.armed = false
	w := a.n.w
	if a.dead {
		return
	}
	if w.Now() < a.stopped {
		a.arm()
		return
	}
	a.n.lock()
	switch {
	case a.m != nil:
		a.m.read(a.readMax)
	case w.chance(3):
		a.catchUp(0)
		a.readRun()
	default:
		a.catchUp(0)
		a.readSingly()
	}
	if a.s.Info().RecvN > 0 {
		a.arm()
	}
	a.n.after()
}

// readRun takes what there is in one call, cut anywhere.
func (a *app) readRun() {
	w := a.n.w
	var run rds.Run
	a.s.Queue().RecvRun(&run, min(a.readMax, 1+w.rng.Intn(200)), 1+w.rng.Intn(1<<16))
	var all []byte
	for _, s := range run.Spans {
		all = append(all, s.Payload...)
	}
	for i, n := range run.Lengths {
		a.took(run.Sources[run.Index[i]], all[:n])
		all = all[n:]
	}
	run.Release()
	a.s.ReadAll(w.Now())
}

// took records that a datagram was read, and returns the model's record of it.
func (a *app) took(src netip.AddrPort, payload []byte) *rec {
	w := a.n.w
	if len(a.queue) == 0 {
		w.fail("D4: %v reads more than was placed", a.addr)
		return nil
	}
	r := a.queue[0]
	a.queue = a.queue[1:]
	switch {
	case r == unknownRec:
		if src.Port() != 0 {
			w.m.placedAt(a.n.epoch, src, a.addr, payload)
		}
	case r == nil:
		if len(payload) != 0 {
			w.fail("D4: %v reads %d bytes where an empty datagram was placed", a.addr, len(payload))
		}
	default:
		if w.m.read(payload) != r || src != r.flow.src {
			w.fail("D4: %v reads something else than %v", a.addr, r)
		}
	}
	return r
}

func (a *app) readSingly() {
	w := a.n.w
	for k := 0; k < a.readMax; k++ {
		d, ok := a.s.Queue().Recv()
		if !ok {
			break
		}
		r := a.took(d.Source, d.Payload)
		if r != nil && r != unknownRec && w.rng.Intn(16) == 0 {
			// An application may keep it for a while: it must not change.
			w.After(time.Duration(w.rng.Int63n(int64(20*time.Millisecond))), func() {
				if w.m.read(d.Payload) != r {
					w.fail("D7: %v changed while the application held it", r)
				}
				d.Release()
			})
		} else {
			d.Release()
		}
	}
	a.s.ReadAll(w.Now())
}
