package rnbd

import (
	"bytes"
	"errors"
	"math/rand"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// world is a server and any number of clients, joined by links that do what
// RTRS promises: a request is answered once; what a lost session had under way
// is sent again only after the store is done with it and the user has resumed.
type world struct {
	t    testing.TB
	now  time.Duration
	rnd  *rand.Rand
	srv  *Server
	ends []*end

	flights  []*flight
	free     []int
	openings []*Opening
	holdOpen bool // openings wait
	notes    []*Opening
	holdNote bool  // they wait
	noteErr  error // how they end
	kept     int   // calls of Keep
	layers   func(blk.Device) blk.Device
	closed   []Closer
	events   []ServerEvent
	buf      []*blk.Request
	answers  []*flight
	spare    []*flight // for answers, in turn
	faults   []*blk.Fault
	noLog    bool
	shuffle  bool                      // answers come in any order
	sent     func(e *end, r *rtrs.Req) // nil: nobody watches
	short    func(usr []byte) error    // why the shell lets a request not come to the server; nil: all come

	mu       sync.Mutex
	wake     sync.Cond
	complete []*blk.Request // guarded by mu
	taken    []*blk.Request
	atStore  int   // guarded by mu
	noHold   error // Hold says so
	holds    int   // Hold was called for, and let not
}

// flight is a request at the server.
type flight struct {
	sr   rtrs.ServerReq
	req  *rtrs.Req
	end  *end
	life int
	data []byte
	room [rnbdwire.OpenLen]byte
	n    int
	err  error
}

// end is a client with its session.
type end struct {
	w        *world
	c        *Client
	name     string
	addr     netip.Addr
	sess     *rtrs.ServerSession
	path     *rtrs.ServerPath
	up       bool
	resumed  bool
	life     int
	maxIO    int
	steps    int
	refuse   error // of Submit
	lateGone bool  // links close only after the session is up again
	late     []*rtrs.Req
	asKernel bool // what an rdsd adds is taken out, both ways
	queue    []*rtrs.Req
	sending  []*rtrs.Req // scratch
	log      [][]byte    // user headers as they were sent
	out      []*blk.Request

	mapped   map[*Volume]error
	unmapped map[*Volume]bool
	changed  int
	kept     int       // calls of Keep
	noting   []*Volume // Note was called for
	events   []ClientEvent
}

func newWorld(t testing.TB, cfg ServerConfig) *world {
	w := &world{t: t, now: time.Second, rnd: rand.New(rand.NewSource(1)), buf: make([]*blk.Request, 0, 16)}
	w.wake.L = &w.mu
	w.srv = NewServer(cfg, w, w, w.rnd)
	t.Cleanup(w.checkHolds)
	return w
}

// restart replaces the server by one with the same exports, as a daemon that
// is started again does. Sessions have to be lost before.
func (w *world) restart(cfg ServerConfig, exports ...*Export) {
	w.srv = NewServer(cfg, w, w, w.rnd)
	w.holds = 0
	for _, e := range exports {
		w.export(e)
	}
}

func (w *world) export(e *Export) {
	w.t.Helper()
	if err := w.srv.Export(e); err != nil {
		w.t.Fatal(err)
	}
}

// mem exports a memory volume.
func (w *world) mem(name string, size uint64) *blk.Mem {
	w.t.Helper()
	m, err := blk.NewMem(blk.MemOptions{Size: size})
	if err != nil {
		w.t.Fatal(err)
	}
	w.export(&Export{Name: name, Device: m})
	return m
}

// The server's environment.

func (w *world) Open(o *Opening)       { w.openings = append(w.openings, o) }
func (w *world) Close(_ any, c Closer) { w.closed = append(w.closed, c) }
func (w *world) Event(e ServerEvent)   { w.events = append(w.events, e) }
func (w *world) Keep()                 { w.kept++ }

func (w *world) Note(o *Opening) { w.notes = append(w.notes, o) }

func (w *world) Reply(now time.Duration, r *rtrs.ServerReq, n int, err error) {
	f := w.flights[r.Seq-1]
	if f.req == nil {
		w.t.Fatal("a request was answered twice")
	}
	if n > len(r.Data) || n > 0 && r.Op != rtrs.Read {
		w.t.Fatalf("%d bytes answered of %d", n, len(r.Data))
	}
	f.n, f.err = n, err
	w.answers = append(w.answers, f)
}

// Complete is called by devices, on any goroutine.
func (w *world) Complete(batch []*blk.Request) {
	w.mu.Lock()
	w.complete = append(w.complete, batch...)
	w.atStore -= len(batch)
	w.mu.Unlock()
	w.wake.Broadcast()
}

// held is how many requests the fault layers keep.
func (w *world) held() (n int) {
	for _, f := range w.faults {
		n += f.Held()
	}
	return n
}

// run lets everything happen that can.
func (w *world) run() {
	for w.step() {
	}
}

func (w *world) step() (more bool) {
	for _, e := range w.ends {
		more = e.deliver() || more
	}
	for !w.holdOpen && len(w.openings) > 0 {
		o := w.openings[0]
		w.openings = slices.Delete(w.openings, 0, 1)
		d, again, err := o.Do()
		for again {
			d, again, err = o.Do()
		}
		if err == nil && w.layers != nil {
			d = w.layers(d)
		}
		w.srv.Opened(w.now, o, d, err)
		more = true
	}
	for !w.holdNote && len(w.notes) > 0 {
		o := w.notes[0]
		w.notes = slices.Delete(w.notes, 0, 1)
		w.srv.Noted(w.now, o, w.noteErr)
		more = true
	}
	for {
		d, batch := w.srv.Next(w.now, w.buf[:0])
		if d == nil {
			break
		}
		for _, r := range batch {
			r.Queue = w
		}
		w.mu.Lock()
		w.atStore += len(batch)
		w.mu.Unlock()
		d.Submit(batch)
		more = true
	}
	w.mu.Lock()
	for len(w.complete) == 0 && w.atStore > w.held() {
		w.wake.Wait()
	}
	w.taken, w.complete = w.complete, w.taken[:0]
	w.mu.Unlock()
	if len(w.taken) > 0 {
		w.srv.Complete(w.now, w.taken)
		more = true
	}
	if len(w.answers) > 0 {
		list := w.answers
		w.answers = w.spare[:0]
		if w.shuffle {
			w.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		for _, f := range list {
			f.answer()
		}
		w.spare = list
		more = true
	}
	for _, e := range w.ends {
		more = e.finished() || more
	}
	return more
}

// tick lets time pass. Clients are called when they have asked for it, and not because
// the time is over: what nobody has asked to be called for does not happen.
func (w *world) tick(d time.Duration) {
	end := w.now + d
	for w.now < end {
		next := Never
		for _, e := range w.ends {
			next = min(next, max(e.c.Next(), w.now+time.Millisecond))
		}
		if next > end {
			w.now = end
			return
		}
		w.now = next
		for _, e := range w.ends {
			e.c.Tick(w.now)
		}
		w.run()
	}
}

// answer brings an answer to the client, unless its session was lost.
func (f *flight) answer() {
	e, r := f.end, f.req
	f.req = nil
	e.w.free = append(e.w.free, int(f.sr.Seq-1))
	if f.life != e.life {
		return
	}
	r.Err = nil
	if f.err != nil {
		r.Err = syscall.Errno(rdserr.Errno(f.err) & rtrswire.MaxErrno)
	}
	if r.Op == rtrs.Read && f.err == nil {
		clear(r.Data[copy(r.Data, f.data[:f.n]):])
	}
	e.done(e.w.now, r)
}

// newEnd makes a client whose session is not up yet.
func (w *world) newEnd(name, addr string, cfg ClientConfig) *end {
	e := &end{w: w, name: name, addr: netip.MustParseAddr(addr), maxIO: 64 << 10,
		mapped: map[*Volume]error{}, unmapped: map[*Volume]bool{}, out: make([]*blk.Request, 0, 16)}
	e.c = NewClient(cfg, e, e)
	w.ends = append(w.ends, e)
	return e
}

// client makes a client whose session is up.
func (w *world) client(name string) *end {
	e := w.newEnd(name, "10.0.0.1", ClientConfig{})
	e.connect()
	return e
}

// connect brings the session up.
func (e *end) connect() {
	e.w.run()
	for _, f := range e.w.flights {
		if f.req != nil && f.end == e {
			e.w.t.Fatal("the session comes up while the store is not done with its former life")
		}
	}
	e.connectNow()
}

// connectNow does so whatever is still under way.
func (e *end) connectNow() {
	e.sess = &rtrs.ServerSession{Name: e.name}
	e.path = &rtrs.ServerPath{Remote: netip.AddrPortFrom(e.addr, 1024)}
	e.w.srv.Up(e.sess)
	e.up, e.resumed = true, false
	e.c.Up(e.w.now)
	e.gone()
	if e.steps == 0 {
		e.w.run()
	}
}

// connectFor brings the session up and lets only so many things happen.
func (e *end) connectFor(steps int) {
	e.steps = 1
	e.connect()
	e.steps = 0
	for range steps {
		e.deliverOne()
	}
}

// deliverOne brings one message to the server and its answer back.
func (e *end) deliverOne() {
	for i, r := range e.queue {
		if r.Admin || e.resumed {
			e.queue = slices.Delete(e.queue, i, i+1)
			e.send(r)
			break
		}
	}
	for _, f := range e.w.answers {
		f.answer()
	}
	e.w.answers = e.w.answers[:0]
}

// cut loses the last path. What was under way waits to be sent again.
func (e *end) cut() {
	e.up, e.resumed = false, false
	e.life++
	var again []*rtrs.Req
	for _, f := range e.w.flights {
		if f.req != nil && f.end == e && f.life == e.life-1 {
			again = append(again, f.req)
		}
	}
	e.queue = append(again, e.queue...)
	e.c.Down(e.w.now)
	e.w.srv.Down(e.w.now, e.sess)
	e.late = slices.DeleteFunc(slices.Clone(e.queue), func(r *rtrs.Req) bool { return !r.Admin })
	e.queue = slices.DeleteFunc(e.queue, func(r *rtrs.Req) bool { return r.Admin })
	if !e.lateGone {
		e.gone()
	}
}

// gone fails the messages about volumes when the links are closed.
func (e *end) gone() {
	late := e.late
	e.late = nil
	for _, r := range late {
		r.Err = rtrs.ErrNoPath
		e.done(e.w.now, r)
	}
}

// The carrier.

func (e *end) MaxIO() int { return e.maxIO }

func (e *end) Submit(now time.Duration, r *rtrs.Req) error {
	if e.refuse != nil {
		return e.refuse
	}
	if len(r.Data) > e.maxIO {
		return rtrs.ErrTooLarge
	}
	if slices.Contains(e.queue, r) || slices.Contains(e.late, r) {
		e.w.t.Fatal("a request submitted twice")
	}
	e.queue = append(e.queue, r)
	return nil
}

func (e *end) Resume(now time.Duration) { e.resumed = true }

func (e *end) Each(f func(r *rtrs.Req)) {
	for _, r := range slices.Clone(e.queue) {
		f(r)
	}
	for _, fl := range e.w.flights {
		if fl.req != nil && fl.end == e && fl.life == e.life {
			f(fl.req)
		}
	}
}

func (e *end) Recall(now time.Duration, r *rtrs.Req, err error) bool { return e.Cancel(now, r, err) }

func (e *end) Cancel(now time.Duration, r *rtrs.Req, err error) bool {
	i := slices.Index(e.queue, r)
	if i < 0 {
		return false
	}
	e.queue = slices.Delete(e.queue, i, i+1)
	r.Err = err
	e.done(now, r)
	return true
}

// deliver brings what may be sent to the server.
func (e *end) deliver() bool {
	if !e.up || len(e.queue) == 0 {
		return false
	}
	e.sending = append(e.sending[:0], e.queue...)
	e.queue = e.queue[:0]
	sent := false
	for _, r := range e.sending {
		if !r.Admin && !e.resumed {
			e.queue = append(e.queue, r)
			continue
		}
		e.send(r)
		sent = true
	}
	return sent
}

func (e *end) send(r *rtrs.Req) {
	w := e.w
	if len(w.free) == 0 {
		f := &flight{}
		w.flights = append(w.flights, f)
		f.sr.Seq = uint64(len(w.flights))
		w.free = append(w.free, len(w.flights)-1)
	}
	f := w.flights[w.free[len(w.free)-1]]
	w.free = w.free[:len(w.free)-1]
	f.req, f.end, f.life = r, e, e.life
	if cap(f.data) < len(r.Data) {
		f.data = make([]byte, len(r.Data))
	}
	f.data = f.data[:len(r.Data)]
	if r.Op == rtrs.Write {
		copy(f.data, r.Data)
	} else {
		for i := range f.data {
			f.data[i] = 0xa5 // what the chunk held before
		}
	}
	if w.sent != nil {
		w.sent(e, r)
	}
	if !w.noLog {
		e.log = append(e.log, bytes.Clone(r.Usr))
	}
	if k, _ := rnbdwire.Kind(r.Usr); e.asKernel && k == rnbdwire.SessInfo {
		clear(r.Usr[5:])
	}
	sr := &f.sr
	sr.Session, sr.Path, sr.Op, sr.Usr, sr.Data = e.sess, e.path, r.Op, append(f.room[:0], r.Usr...), f.data
	if w.short != nil {
		if err := w.short(sr.Usr); err != nil {
			w.Reply(w.now, sr, 0, err)
			return
		}
	}
	w.srv.Request(w.now, sr)
}

func (e *end) finished() bool {
	more := false
	for {
		batch := e.c.Finished(e.out[:0])
		if len(batch) == 0 {
			return more
		}
		blk.Complete(batch)
		more = true
	}
}

// The client's environment.

func (e *end) Mapped(v *Volume, err error)       { e.mapped[v] = err }
func (e *end) Unmapped(v *Volume)                { e.unmapped[v] = true }
func (e *end) Changed(v *Volume, info *blk.Info) { e.changed++ }
func (e *end) Keep(v *Volume)                    { e.kept++ }
func (e *end) Note(v *Volume)                    { e.noting = append(e.noting, v) }
func (e *end) Event(ev ClientEvent)              { e.events = append(e.events, ev) }
func (e *end) countEvents(k ClientEventKind) (n int) {
	for _, ev := range e.events {
		if ev.Kind == k {
			n++
		}
	}
	return n
}

// tryMap maps and lets it end.
func (e *end) tryMap(name string, access rnbdwire.Access) (*Volume, error) {
	v, err := e.c.Map(e.w.now, name, access)
	if err != nil {
		return nil, err
	}
	e.w.run()
	err, told := e.mapped[v]
	if !told {
		e.w.t.Fatalf("%q: no outcome of the mapping", name)
	}
	return v, err
}

func (e *end) mustMap(name string, access rnbdwire.Access) *Volume {
	e.w.t.Helper()
	v, err := e.tryMap(name, access)
	if err != nil {
		e.w.t.Fatalf("%q: %v", name, err)
	}
	return v
}

// ioDone marks what has completed in Ctx.
var ioDone = blk.CompleteFunc(func(r *blk.Request) { *r.Ctx.(*bool) = true })

// submit starts a request; done tells when it has completed.
func (e *end) submit(v *Volume, r *blk.Request) (done *bool) {
	done = new(bool)
	r.Queue, r.Ctx = ioDone, done
	v.Submit(e.w.now, []*blk.Request{r})
	return done
}

var errPending = errors.New("still under way")

// do carries out a request.
func (e *end) do(v *Volume, r *blk.Request) error {
	done := e.submit(v, r)
	e.w.run()
	if !*done {
		return errPending
	}
	return r.Err
}

func (e *end) write(v *Volume, off uint64, b byte, n int, flags blk.Flags) error {
	return e.do(v, &blk.Request{Op: blk.OpWrite, Flags: flags, Off: off, Len: uint64(n), Buf: bytes.Repeat([]byte{b}, n)})
}

// read is the byte that n bytes at off are all.
func (e *end) read(v *Volume, off uint64, n int) (byte, error) {
	e.w.t.Helper()
	buf := bytes.Repeat([]byte{0xee}, n)
	if err := e.do(v, &blk.Request{Op: blk.OpRead, Off: off, Len: uint64(n), Buf: buf}); err != nil {
		return 0, err
	}
	if !bytes.Equal(buf, bytes.Repeat(buf[:1], n)) {
		e.w.t.Fatalf("at %d: not the same byte all over: %x ...", off, buf[:16])
	}
	return buf[0], nil
}

func (e *end) flush(v *Volume) error { return e.do(v, &blk.Request{Op: blk.OpFlush}) }

// fault exports a memory volume below a fault layer.
func (w *world) fault(name string, size uint64) (*blk.Fault, *Export) {
	m, err := blk.NewMem(blk.MemOptions{Size: size})
	if err != nil {
		w.t.Fatal(err)
	}
	f := blk.NewFault(m, 1)
	w.faults = append(w.faults, f)
	e := &Export{Name: name, Device: f}
	w.export(e)
	return f, e
}

// wantErr compares errnos: from the server there is nothing else.
func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if (err == nil) != (want == nil) || rdserr.Errno(err) != rdserr.Errno(want) {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}
