package service

import (
	"errors"
	"io"
	"log/slog"
	"math/bits"
	"net"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// What a client has sent of gRPC messages is memory of the daemon from the read
// that brought it until a handler has taken the message: a megabyte of a message
// that never ends, on each of thousands of streams. gRPC counts messages and
// windows for each stream by itself. So the connection below it follows the
// frames, both ways, and charges the client's user for what has come and is not
// taken yet, before the server sees it: a read that cannot be charged waits. The
// client is held up by its own socket then; who sits on half a message while
// others wait is closed.
//
// Taken is what the server gave the client window for again, which it does when
// a handler has read it.
//
// What stays of a call until it ends, its headers and its first message, is charged as its stream is.

const (
	// connBytes and streamBytes are what a connection and a call on it cost, idle
	// (measured by internal/memtest): buffers to read and write, goroutines, and heldFree.
	connBytes   = 96 << 10
	streamBytes = 16 << 10
	// heldFree is what streamBytes covers of what a call holds until it ends, see holds.
	heldFree = 2 << 10
	// fieldBytes is what a byte of a block of headers may become, which is a field of a call that names one of
	// before: up to 2.3 slots of a map, which is made for the count of fields, and a list of one value. All that
	// maxHeaderBytes lets through becomes headMost at most.
	fieldBytes = 128
	headMost   = 4 * maxHeaderBytes
	// frameBytes is what a frame costs the server beside its bytes.
	frameBytes = 96
	// callPatience is how long a read waits for memory before it ends its connection.
	callPatience = 10 * time.Second
	// callIdle is how long nothing may have come of a message that is not whole
	// when others wait for memory; callStale, when nobody does.
	callIdle  = time.Second
	callStale = time.Minute
	callPoll  = 5 * time.Millisecond
)

// callConn is a connection whose client is charged for what it sends.
type callConn struct {
	net.Conn
	table   *callTable
	account *quota.Account
	id      config.Identity
	once    sync.Once
	release func()
	shut    sync.Once // the connection below; who comes second waits
	pace    *pace     // of its user
	called  bool      // the last read had calls in it; the reader's

	mu      sync.Mutex // guards what follows
	in, out frames
	streams map[uint32]*callStream // nil when the connection is closed
	cur     *callStream            // of the frame that in is in
	cost    int                    // of what the read under way brought, see pace
	owed    int64                  // by the streams
	taken   int64                  // of the account for them, at least owed when nothing waits
	held    int64                  // by the streams until they end, beyond streamBytes each
	opened  int64                  // taken for streams as such, and for what they hold
	half    int                    // streams in the middle of a message
	last    time.Time              // of the last read
	waits   bool                   // for memory
	ended   bool                   // by evict or sweep: what it waits for will not come
	bad     error                  // what the client may not do
	failed  error                  // of the first read or write that failed
}

// callStream is a stream of it, guarded by the connection's mu.
type callStream struct {
	msg      messages
	received int64 // bytes of DATA, less what window was given for again
	spare    int64 // what the buffers of those are larger than they
	frames   int64 // that brought them
	owed     int64 // as settle last found it
	head     int64 // bytes of its headers
	held     int64 // as hold last found it
}

// holds is what a call keeps until it ends beyond what streamBytes covers: the fields of its headers, and its first
// message as it was read. gRPC reads that before any handler is asked, and waits for the end of what the client
// sends, which may never come; a watch has its request for as long as it stands. Window given again for the
// bytes of it says nothing about that.
func (s *callStream) holds() int64 {
	return max(min(fieldBytes*s.head, headMost)+client.RequestBytes(s.msg.first)-heldFree, 0)
}

// owes is what the stream's unread bytes take. Window for a large message is
// given before it has come, so that received may be too small while one is under
// way; what has come of that is the least there is. It is copied into one piece
// at its end.
func (s *callStream) owes() int64 {
	return max(s.received+s.spare, 2*s.msg.size, 0) + s.frames*frameBytes
}

// callTable is the connections of a node's gRPC clients.
type callTable struct {
	log       *slog.Logger
	count     *base.Counters
	paces     paces
	perSecond func() float64 // calls a user may make; nil: they are read as they come
	guard     *guard.Guard
	parting   sync.WaitGroup // of part

	mu      sync.Mutex
	conns   map[*callConn]struct{} // guarded by mu
	evicted time.Time              // guarded by mu; when evict last ended one
}

func (t *callTable) wrap(c net.Conn, id config.Identity, account *quota.Account, release func()) *callConn {
	k := &callConn{Conn: c, table: t, account: account, id: id, release: release, streams: map[uint32]*callStream{},
		in: frames{skip: prefaceSize}, last: time.Now(), pace: t.paces.join(id.UID)}
	t.mu.Lock()
	t.conns[k] = struct{}{}
	t.mu.Unlock()
	return k
}

// Read charges what it brings before the server has it.
func (c *callConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:c.mayRead(len(p))])
	if err != nil {
		c.fails(err)
	}
	if n == 0 {
		return n, err
	}
	c.mu.Lock()
	c.last = time.Now()
	c.cost = 0
	c.in.feed(p[:n], c.begin, c.body, c.end)
	c.called = c.cost > 0
	cost := c.cost
	no := c.bad
	if no == nil {
		if no = c.take(); no != nil {
			no = c.await(no)
		}
	}
	c.mu.Unlock()
	if no == nil && cost > 0 && c.table.perSecond != nil {
		no = c.keepPace(cost)
	}
	if no != nil {
		c.table.refuse(c, no)
		return 0, no
	}
	return n, err
}

// callGrain is what is taken and given back at once, so that a connection in
// its ordinary course does neither.
const callGrain = 32 << 10

// take takes what is owed and not taken yet. mu is held.
func (c *callConn) take() error {
	if n := c.standing() - c.opened; n > 0 {
		if err := c.account.Take(quota.Clients, n); err != nil {
			return err
		}
		c.opened += n
	}
	if n := c.lacks(); n > 0 {
		if err := c.account.Take(quota.Calls, n); err != nil {
			return err
		}
		c.taken += n
	}
	return nil
}

// standing is what the streams cost as such, and hold. mu is held.
func (c *callConn) standing() int64 { return int64(len(c.streams))*streamBytes + c.held }

// lacks is what take takes for calls. mu is held.
func (c *callConn) lacks() int64 {
	return max(c.owed-c.taken+callGrain-1, 0) / callGrain * callGrain
}

// give gives back what is taken and not owed. mu is held.
func (c *callConn) give() {
	if n := c.opened - c.standing(); n > 0 {
		c.account.Give(quota.Clients, n)
		c.opened -= n
	}
	if n := c.taken - c.owed - callGrain; n >= callGrain {
		c.account.Give(quota.Calls, n)
		c.taken -= n
	}
}

// await waits until take has what it wants, or its client has gone: what that has
// sent is served no more. Nothing is read meanwhile. mu is held, and let go while it waits.
func (c *callConn) await(err error) error {
	c.waits = true
	defer func() { c.waits = false }()
	begun := time.Now()
	for {
		c.mu.Unlock()
		time.Sleep(callPoll)
		if d := time.Since(begun); d > callIdle {
			c.table.evict(time.Now(), c, err)
		}
		c.mu.Lock()
		switch {
		case c.streams == nil || c.ended || c.left():
			return net.ErrClosed
		case time.Since(begun) > callPatience:
			return err
		}
		if err = c.take(); err == nil {
			return nil
		}
	}
}

// left reports whether the client has closed its end, which a read would tell only behind
// what it has sent. mu is held.
func (c *callConn) left() bool {
	t, ok := c.Conn.(*toll.Conn)
	if !ok || !t.Left() {
		return false
	}
	if c.failed == nil {
		c.failed = io.EOF
	}
	return true
}

// begin looks at the header of a frame of the client. mu is held, as in all
// that follows.
func (c *callConn) begin(size int) {
	c.cost += costOf(&c.in, size)
	s := c.streams[c.in.stream]
	c.cur = nil
	switch c.in.kind {
	case frameHeaders:
		if s == nil && c.streams != nil && c.in.stream != 0 {
			s = &callStream{}
			c.streams[c.in.stream] = s
		}
		c.headed(s, size)
	case frameContinuation:
		c.headed(s, size)
	case frameReset:
		c.forget(c.in.stream)
	case frameData:
		if c.in.flags&flagPadded != 0 { // no gRPC client does
			c.bad = rdserr.With(rdserr.ErrInvalid, "a DATA frame with padding")
		}
		if c.cur = s; s != nil {
			s.frames++
			s.received += int64(size)
			if size > 1<<10 { // of the pool, in powers of two
				s.spare += 1<<bits.Len(uint(size-1)) - int64(size)
			}
		}
	}
}

func (c *callConn) body(p []byte) {
	if s := c.cur; s != nil {
		was, first := s.msg.size > 0, s.msg.first
		s.msg.feed(p)
		if s.msg.first != first {
			c.hold(s)
		}
		c.halved(was, s.msg.size > 0)
	}
}

func (c *callConn) halved(was, is bool) {
	switch {
	case is && !was:
		c.half++
	case was && !is:
		c.half--
	}
}

func (c *callConn) end() {
	if c.cur != nil {
		c.settle(c.cur)
	}
}

// headed adds size bytes to the headers of s, if there is one.
func (c *callConn) headed(s *callStream, size int) {
	if s != nil {
		s.head += int64(size)
		c.hold(s)
	}
}

// hold brings up to date what s holds.
func (c *callConn) hold(s *callStream) {
	now := s.holds()
	c.held += now - s.held
	s.held = now
}

// settle brings up to date what s owes.
func (c *callConn) settle(s *callStream) {
	now := s.owes()
	c.owed += now - s.owed
	s.owed = now
}

func (c *callConn) forget(id uint32) {
	if s := c.streams[id]; s != nil {
		half := false // nothing of it waits any more
		c.halved(s.msg.size > 0, half)
		c.owed -= s.owed
		c.held -= s.held
		delete(c.streams, id)
	}
}

// Write follows what the server tells the client.
func (c *callConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.out.feed(p, noBegin, noBody, c.told)
	c.give()
	c.mu.Unlock()
	n, err := c.Conn.Write(p)
	if err != nil {
		c.fails(err)
	}
	return n, err
}

func (c *callConn) fails(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		c.failed = err
	}
}

func noBegin(int)   {}
func noBody([]byte) {}

// told looks at a whole frame of the server.
func (c *callConn) told() {
	switch {
	case c.out.kind == frameReset, c.out.kind == frameHeaders && c.out.flags&flagEndStream != 0:
		c.forget(c.out.stream)
	case c.out.kind == frameWindowUpdate && c.out.stream != 0:
		if s := c.streams[c.out.stream]; s != nil {
			s.taken(c.out.number())
			c.settle(s)
		}
	}
}

// taken counts n bytes that window was given for again. Of the frames and of what their
// buffers are larger than they, as large a part is taken.
func (s *callStream) taken(n int64) {
	if left := max(s.received-n, 0); left > 0 {
		s.frames = s.frames * left / s.received
		s.spare = s.spare * left / s.received
	} else {
		s.frames, s.spare = 0, 0
	}
	s.received -= n
}

// Close gives everything back, its client's place when the connection below is closed.
func (c *callConn) Close() error {
	c.once.Do(func() {
		t := c.table
		t.mu.Lock()
		delete(t.conns, c)
		t.mu.Unlock()
		t.paces.leave(c.pace)
		c.mu.Lock()
		t.tell(c)
		c.streams, c.cur = nil, nil
		c.account.Give(quota.Calls, c.taken)
		c.account.Give(quota.Clients, c.opened)
		c.taken, c.opened, c.owed, c.held, c.half = 0, 0, 0, 0, 0
		c.mu.Unlock()
		t.part(c, c.release)
	})
	return nil
}

// part closes the connection below, and calls after then. That takes as long as a descriptor likes
// that the client has sent: a read or the close itself may be the last to let go of it. So it is
// done in a goroutine, which ends with it: one when a connection is ended, and one for Close.
func (t *callTable) part(c *callConn, after func()) {
	t.parting.Go(func() {
		defer t.guard.Recover(guard.Call, nil)
		c.shut.Do(func() { _ = c.Conn.Close() }) // nobody is left to be told
		after()
	})
}

// tell says of a connection with calls under way that it is closed, if that was not its client's doing and
// refuse has not said so. c.mu is held.
func (t *callTable) tell(c *callConn) {
	switch {
	case len(c.streams) == 0 || c.ended || c.bad != nil || errors.Is(c.failed, io.EOF):
	case c.failed == nil:
		t.log.Info("client's connection closed by this end", "uid", c.id.UID, "pid", c.id.PID, "calls", len(c.streams))
	default:
		t.log.Info("client's connection failed", "uid", c.id.UID, "pid", c.id.PID, "calls", len(c.streams), "error", c.failed)
	}
}

// refuse says why a client's connection is ended.
func (t *callTable) refuse(c *callConn, why error) {
	if errors.Is(why, net.ErrClosed) {
		return
	}
	t.count.ClientsRefused.Add(1)
	t.log.Warn("client's connection closed", "uid", c.id.UID, "pid", c.id.PID, "error", why)
}

// evict makes room for who, which waits. One user's greed is no other's end: the user
// who gives room is the one whose own share is spent, if that is what is missing, and
// else the one with the most in calls that may be ended; a user who holds little gives none to
// others, however little of the rest is in calls, unless calls have their part: that may be all
// with such users. Of its connections goes the one that sits on half a message and has been
// silent for longest, or, when all of them are waiting themselves, the one that holds most.
func (t *callTable) evict(now time.Time, who *callConn, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.evicted) < callIdle/10 {
		return // what that one held is on its way back
	}
	who.mu.Lock()
	full := who.account.Full(quota.Calls, who.lacks())
	who.mu.Unlock()
	var fit []evictable
	held := map[uint32]int64{} // by user
	for c := range t.conns {
		c.mu.Lock()
		e := evictable{c, c.taken, c.last, c.waits}
		// Who waits may have nothing but its streams, which are of use where all memory is short. Less
		// than who waits takes is of use to nobody.
		if n := c.taken + c.opened; c.waits && !full && n >= callGrain {
			e.holds = n
		}
		no := c.ended || c.half == 0 && !c.waits
		c.mu.Unlock()
		if !no && (full || c.id.UID == who.id.UID || !c.account.Little()) {
			fit = append(fit, e)
			held[c.id.UID] += e.holds
		}
	}
	uid := who.id.UID
	if !who.account.OverShare(quota.Calls, callGrain) {
		for u, n := range held {
			if n > held[uid] {
				uid = u
			}
		}
	}
	var idle, large *evictable
	for i := range fit {
		switch e := &fit[i]; {
		case e.c.id.UID != uid:
		case !e.waits && now.Sub(e.last) >= callIdle && (idle == nil || e.last.Before(idle.last)):
			idle = e
		case e.holds > 0 && (large == nil || e.holds > large.holds):
			large = e
		}
	}
	if idle == nil {
		idle = large
	}
	if idle != nil {
		t.evicted = now
		t.refuse(idle.c, why)
		// Its reader ends the rest. It may be in await, where it hears nothing of a closed descriptor.
		idle.c.mu.Lock()
		idle.c.ended = true
		idle.c.mu.Unlock()
		t.part(idle.c, func() {})
	}
}

// evictable is a connection as evict saw it.
type evictable struct {
	c     *callConn
	holds int64
	last  time.Time
	waits bool
}

// sweep ends connections that are silent in the middle of a message.
func (t *callTable) sweep(now time.Time) {
	t.paces.sweep(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		c.mu.Lock()
		stale := c.half > 0 && !c.waits && !c.ended && now.Sub(c.last) > callStale
		c.ended = c.ended || stale
		c.mu.Unlock()
		if stale {
			t.refuse(c, rdserr.With(rdserr.ErrTimeout, "nothing more of a message in %v", callStale))
			t.part(c, func() {})
		}
	}
}
