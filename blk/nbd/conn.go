package nbd

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
)

// conn is one connection in the transmission phase.
type conn struct {
	srv        *Server
	nc         net.Conn
	s          stream
	loop       *loop // nil: a goroutine reads
	x          *export
	structured bool // structured replies were agreed on
	allocation bool // base:allocation was agreed on
	atEnd      func(*conn)

	// Owned by the reader.
	disconnected bool // in order, by a command
	rb           *recvBuf
	r, w         int    // rb.b[r:w] is read and not parsed
	big          *op    // its payload is being read into op.buf
	bigAt        int    // bytes of that payload which are there
	large        bool   // the last write had a buffer of its own: the next one is read without being copied
	skip         uint64 // bytes of payload to throw away
	skipped      *op    // answered then
	batch        []*blk.Request
	short        bool // the last read brought less than there was room for
	need         int  // what waitsForRoom asks for: memory for an op; -1: for a receive buffer

	mu       sync.Mutex
	room     sync.Cond // something was given back, or inFlight became 0
	free     opList    // guarded by mu
	made     int       // guarded by mu; ops there are
	inFlight int       // guarded by mu; ops in use, and receive buffers beside the reader's
	bytes    int       // guarded by mu; memory of those
	promised int       // guarded by mu; bytes that the reader has found room for and not taken yet
	charge   Charge    // nil: memory is not charged
	charged  int       // guarded by mu; taken of charge beside connMemory
	asking   bool      // guarded by mu; askAgain is under way
	faulted  bool      // guarded by mu; its work has panicked, and ops may have been lost

	half    awaited // the client has sent half a request, and may have no more
	stuck   awaited // the client's socket is full
	out     opList  // guarded by mu; finished, to be replied to
	sending bool    // guarded by mu; a thread holds the transmit token
	looking bool    // guarded by mu; lookUp runs
	lookups opList  // guarded by mu; wait for lookUp

	pending  atomic.Int64 // requests that the device has
	changing atomic.Int64 // those of them that change what it holds
	broken   atomic.Bool  // nothing can be sent any more
	stopping atomic.Bool  // everything is answered with ESHUTDOWN
	leaving  atomic.Bool  // nothing more is read
	last     atomic.Bool  // nothing is received any more

	gone    atomic.Bool   // nothing is read any more
	drained chan struct{} // closed when the device has given back all requests that were read and change it

	// Owned by the holder of the transmit token.
	vec     [][]byte // the pieces being written
	hdrs    []byte   // headers in vec
	sent    opList   // whose replies are in vec
	drainFn func()
	lookFn  func()
	faultFn func(error)
}

func newConn(srv *Server, nc net.Conn, x *export) *conn {
	c := &conn{srv: srv, nc: nc, x: x, drained: make(chan struct{})}
	c.room.L = &c.mu
	if r := srv.opts.Reactor; r != nil {
		c.loop = newLoop(c, nc, r)
	}
	if c.loop != nil {
		c.s = c.loop.s
	} else {
		c.s = newStream(nc, srv.opts.Spin)
	}
	c.drainFn, c.lookFn, c.faultFn = c.drain, c.lookUp, c.fault
	return c
}

// serve runs the transmission phase to its end. When it returns, the device has
// given everything back and the connection is closed.
func (c *conn) serve() error {
	var err error
	if c.loop != nil {
		err = c.loop.receive()
	} else {
		if e := c.srv.opts.Guard.Do(guard.Volume, func() { err = c.receive() }); e != nil {
			c.fault(e)
			err = e
		}
	}
	c.gone.Store(true)
	// Before the wait for requests under way: the next connection may begin to be made.
	if c.atEnd != nil {
		c.atEnd(c)
	}
	if err == nil { // an orderly end: earlier requests are still answered
		c.last.Store(true)
		c.linger()
	} else {
		c.fail()
	}
	if o := c.big; o != nil {
		c.release(o)
	}
	if o := c.skipped; o != nil {
		c.release(o)
	}
	c.mu.Lock()
	// After a fault, too, this waits for everything that the device has: an old write must
	// not come after those of the next connection. Reads hold up nobody who follows.
	for c.changing.Load() > 0 {
		c.room.Wait()
	}
	close(c.drained)
	for c.pending.Load() > 0 {
		c.room.Wait()
	}
	// sending: the thread with the transmit token uses the connection and its memory.
	for c.inFlight > 0 && !c.faulted || c.sending {
		c.room.Wait()
	}
	c.promised = 0
	if c.returnCharge(); c.charged > 0 { // it has faulted: nothing is given back later
		c.charge.Give(c.charged)
		c.charged = 0
		c.srv.reserve.CompareAndSwap(c, nil)
	}
	c.mu.Unlock()
	if c.rb != nil {
		c.dropBuf(c.rb)
		c.rb = nil
	}
	c.close()
	return err
}

func (c *conn) close() {
	if c.loop != nil {
		c.loop.close()
	} else {
		c.nc.Close()
	}
}

// follow waits while the device has requests of connections that have ended and change it. Whoever connects
// after a client that was killed knows nothing of its last write, which may wait for a path: it
// must not come after the writes of this connection. Connections that go on are the business of
// those who have them.
func (c *conn) follow() error {
	var tick *time.Ticker
	for {
		before := c.srv.before(c)
		if before == nil {
			return nil
		}
		if tick == nil {
			tick = time.NewTicker(hangUpEvery)
			defer tick.Stop()
		}
		select {
		case <-before.drained:
		case <-tick.C:
		}
		switch {
		case c.broken.Load() || c.leaving.Load() || c.hungUp(): // what it has sent is not read
			return net.ErrClosed
		case c.stopping.Load(): // all of it is refused
			return nil
		}
	}
}

// before is a connection of the same device, perhaps under another name, whose client sends
// nothing more, and of whose requests some are to be read yet, or change the device and are with
// it; nil: there is none.
func (s *Server) before(c *conn) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.sessions {
		o := h.c
		if o == nil || o == c || o.x.Device != c.x.Device {
			continue
		}
		select {
		case <-o.drained:
		default:
			if o.gone.Load() || o.hungUp() {
				return o
			}
		}
	}
	return nil
}

// hungUp reports whether the client has closed its end, even if there is still something to
// read. What is no socket does not say.
func (c *conn) hungUp() bool {
	if c.loop != nil {
		return c.loop.s.hungUp()
	}
	_, ok := c.nc.(syscall.Conn)
	return ok && hungUp(c.nc)
}

// linger bounds how long the client may take to read the replies there are.
func (c *conn) linger() {
	if c.loop != nil {
		c.loop.linger()
	} else {
		c.nc.SetWriteDeadline(time.Now().Add(c.srv.opts.Linger))
	}
}

// fail gives the connection up. Requests the device has complete unanswered.
func (c *conn) fail() {
	c.broken.Store(true)
	c.s.end()
}

// stop ends the connection in order: requests in flight are answered, those that come
// within the grace period are refused with ESHUTDOWN.
func (c *conn) stop() {
	c.stopping.Store(true)
	if c.loop != nil {
		c.loop.stop()
	} else {
		c.nc.SetReadDeadline(time.Now().Add(shutdownGrace))
	}
}

// leave ends the connection for a client that finds the volume again: requests that have
// been read are carried out and answered, and nothing more is read. The client gets no
// answer to others, takes that for a lost connection and sends them again; a refusal would
// be an error of its disk.
func (c *conn) leave() {
	c.leaving.Store(true)
	if c.loop != nil {
		c.loop.leave()
	} else {
		c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// shutdownGrace is how long a client may go on sending requests, which are
// refused, when the server or the export stops.
const shutdownGrace = 200 * time.Millisecond

// ended tells whether the error of a read is an orderly end.
func (c *conn) ended(err error) bool {
	if errors.Is(err, io.EOF) {
		return c.r == c.w && c.big == nil && c.skip == 0
	}
	return (c.stopping.Load() || c.leaving.Load()) && errors.Is(err, os.ErrDeadlineExceeded)
}

// takeOp returns an op that may use n bytes, or nil when the connection's share
// of requests or memory is spent.
func (c *conn) takeOp(n int) *op {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lacks(n) {
		return nil
	}
	o := c.free.pop()
	if o == nil {
		c.made++
		o = &op{}
		o.req.Queue, o.req.Ctx = c, o
	}
	o.bytes = n
	c.inFlight++
	c.bytes += n
	c.promised = 0
	return o
}

// fits tells whether n bytes more are within the limit, and charged for. One
// request always fits, or it would wait for ever. Called with mu held.
func (c *conn) fits(n int) bool {
	return c.faulted || (c.inFlight == 0 || c.bytes+n <= c.srv.opts.MaxBytes) && c.afford(n)
}

// lacks tells whether there is no op that may use n bytes. Called with mu held.
func (c *conn) lacks(n int) bool {
	return !c.faulted && (c.free.head == nil && c.made >= c.srv.opts.MaxRequests || !c.fits(n))
}

// waitsForRoom reports whether there is still no room for the reader's need. It is called
// with mu held.
func (c *conn) waitsForRoom() bool {
	if c.need < 0 {
		return c.rb.refs.Load() > 1 && !c.fits(recvSize)
	}
	return c.lacks(c.need)
}

// errStarved says that the reader has to wait for room, and is on a thread that must not
// wait.
var errNoRoom = errors.New("no room for a request")

// mustTakeOp is takeOp that waits. Before it does, it hands on the parsed requests, whose
// end gives back the room it waits for.
func (c *conn) mustTakeOp(n int) *op {
	for {
		if o := c.takeOp(n); o != nil {
			return o
		}
		c.submit()
		c.mu.Lock()
		if c.lacks(n) {
			c.room.Wait()
		}
		c.mu.Unlock()
	}
}

// release gives an op back that is not replied to.
func (c *conn) release(o *op) {
	var l opList
	l.push(o)
	c.recycle(&l)
}

// recycle takes back ops whose replies have left.
func (c *conn) recycle(l *opList) {
	var done opList
	n, bytes := 0, 0
	for o := l.pop(); o != nil; o = l.pop() {
		if o.buf != nil {
			putBuf(o.buf)
		}
		// The payload of small writes lies in the receive buffer, which is free for the next
		// read with its last user.
		if o.rb != nil {
			o.rb.release()
		}
		n++
		bytes += o.bytes
		o.buf, o.rb, o.data, o.err = nil, nil, nil, nil
		o.req.Buf = nil
		done.push(o)
	}
	if n == 0 {
		return
	}
	c.mu.Lock()
	done.append(&c.free) // the latest used is the first used again
	c.free = done
	c.inFlight -= n
	c.bytes -= bytes
	// Memory came back: give back the surplus of the charge, then let the reader go on that
	// waited for it.
	c.returnCharge()
	c.room.Signal()
	c.loop.resumeRead()
	c.mu.Unlock()
}

// newBuf makes a receive buffer the reader's.
func (c *conn) newBuf() {
	c.rb = recvPool.Get().(*recvBuf)
	c.rb.c = c
	c.rb.refs.Store(1)
	c.r, c.w = 0, 0
}

// dropBuf ends the reader's hold of a buffer. As long as the device reads
// payload in it, it counts against the connection's memory.
func (c *conn) dropBuf(rb *recvBuf) {
	c.mu.Lock()
	c.inFlight++
	c.bytes += recvSize
	c.promised = 0
	c.mu.Unlock()
	rb.release()
}

// release gives up one hold of a receive buffer.
func (rb *recvBuf) release() {
	if rb.refs.Add(-1) > 0 {
		return
	}
	c := rb.c
	rb.c = nil
	recvPool.Put(rb)
	c.mu.Lock()
	c.inFlight--
	c.bytes -= recvSize
	c.returnCharge()
	c.room.Signal()
	c.loop.resumeRead()
	c.mu.Unlock()
}
