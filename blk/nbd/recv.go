package nbd

import (
	"encoding/binary"
	"errors"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Design notes.
//
// One read takes as many requests as the socket holds; they go to the device as one batch.
// The payload of small writes stays where it was read and the device writes it from there.
// A large one has a buffer of its own: the part that came with the header is copied, the
// rest is read straight into it, together with the next header, so that a run of large
// writes is not copied at all.

// bigWrite is the length from which the payload of a write that is not all
// there yet is read into a buffer of its own.
const bigWrite = 16 << 10

// maxPayload is the longest read or write. Clients may count on it without
// asking, so it is not configurable.
const maxPayload = blk.MaxIO

var errDisconnect = errors.New("the client disconnected")

// receive reads requests until the client disconnects (nil) or breaks the
// protocol or the connection.
func (c *conn) receive() error {
	for {
		err := c.parse()
		c.submit()
		if err == nil {
			err = c.fill()
		}
		if err != nil {
			return c.outcome(err)
		}
	}
}

// outcome returns the result of receive for an error.
func (c *conn) outcome(err error) error {
	if err == errDisconnect || c.ended(err) {
		return nil
	}
	return err
}

// request is the header of a command.
type request struct {
	cmd, flags uint16
	cookie     uint64
	off        uint64
	n          uint32
}

func parseRequest(b []byte) (q request, err error) {
	be := binary.BigEndian
	if magic := be.Uint32(b); magic != magicRequest {
		return q, rdserr.With(rdserr.ErrProtocol, "a request begins with %#x, not %#x", magic, magicRequest)
	}
	return request{
		flags:  be.Uint16(b[4:]),
		cmd:    be.Uint16(b[6:]),
		cookie: be.Uint64(b[8:]),
		off:    be.Uint64(b[16:]),
		n:      be.Uint32(b[24:]),
	}, nil
}

// parse takes complete requests out of the receive buffer.
func (c *conn) parse() error {
	for c.rb != nil && c.big == nil {
		// The payload of a write that was refused has to be read all the same; the refusal
		// leaves when it has come.
		if c.skip > 0 {
			n := min(c.skip, uint64(c.w-c.r))
			c.r += int(n)
			if c.skip -= n; c.skip > 0 {
				return nil
			}
			o := c.skipped
			c.skipped = nil
			c.finish(o)
			continue
		}
		b := c.rb.b[c.r:c.w]
		if len(b) < requestSize {
			return nil
		}
		q, err := parseRequest(b)
		if err != nil {
			return err
		}
		if q.cmd == cmdDisc {
			c.r += requestSize
			c.disconnected = true
			return errDisconnect
		}
		// Judged before any memory is taken for it.
		op, flags, err := c.check(&q)
		// A request that finds no room stays in the buffer, unread: it is parsed again when
		// there is.
		if c.loop != nil && c.lacksRoom(&q, len(b)-requestSize, err) {
			return errNoRoom
		}
		if q.cmd == cmdWrite && err == nil {
			// Not all of its payload is there yet.
			if !c.write(&q, flags, b[requestSize:]) {
				return nil
			}
			continue
		}
		c.r += requestSize
		c.large = false
		if err != nil {
			c.refuse(&q, err)
			continue
		}
		c.other(&q, op, flags)
	}
	return nil
}

// lacksRoom reports whether a command, of whose payload so much is there, has to wait for
// room. Only the reader takes room, and what is charged for it is promised, so room that is
// there stays until start takes it.
func (c *conn) lacksRoom(q *request, there int, bad error) bool {
	c.need = 0
	switch n := int(q.n); {
	case bad != nil:
	case q.cmd == cmdRead, q.cmd == cmdWrite && there < n && n >= bigWrite:
		c.need = bufSize(n)
	case q.cmd == cmdBlockStatus, q.cmd == cmdCache:
		c.need = bufSize(statusSize)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.promised = 0; c.waitsForRoom() {
		return true
	}
	c.promised = c.need
	return false
}

// check decides whether a command may be carried out: everything but its
// payload is judged here, before any memory is given to it.
func (c *conn) check(q *request) (op blk.Op, flags blk.Flags, err error) {
	if c.stopping.Load() {
		return 0, 0, blk.ErrClosed
	}
	info := c.x.dev.Info()
	allowed := uint16(cmdFlagFUA) // with every command, if the device has it at all
	if !info.FUA {
		allowed = 0
	}
	// Which flags go with which command is the protocol's rule, and stands here alone; the
	// abilities of the volume are CheckRange's.
	switch q.cmd {
	case cmdRead:
		// Permission and range are those of a read; what is done is decided by the command.
		op = blk.OpRead
		if c.structured {
			allowed |= cmdFlagDF // each reply is in one piece anyway
		}
	case cmdWrite:
		op = blk.OpWrite
	case cmdFlush:
		op = blk.OpFlush
	case cmdTrim:
		op = blk.OpDiscard
	case cmdWriteZeroes:
		op = blk.OpWriteZeroes
		allowed |= cmdFlagNoHole
		if info.FastZero {
			allowed |= cmdFlagFastZero
		}
	case cmdCache:
		op = blk.OpRead
	case cmdBlockStatus:
		op = blk.OpRead
		allowed |= cmdFlagReqOne
		if !c.allocation {
			return 0, 0, rdserr.With(blk.ErrRequest, "block status was not agreed on; want %s by NBD_OPT_SET_META_CONTEXT for this export", allocationName)
		}
	default:
		return 0, 0, rdserr.With(blk.ErrRequest, "unknown command %d", q.cmd)
	}
	if extra := q.flags &^ allowed; extra != 0 {
		return 0, 0, rdserr.With(blk.ErrRequest, "command %d: flags %#x are not allowed here", q.cmd, extra)
	}
	// With a read or a flush the flag is allowed and means nothing.
	if q.flags&cmdFlagFUA != 0 && op.Writes() {
		flags |= blk.FUA
	}
	if q.flags&cmdFlagNoHole != 0 {
		flags |= blk.NoUnmap
	}
	if q.flags&cmdFlagFastZero != 0 {
		flags |= blk.FastZero
	}
	if q.cmd == cmdCache || q.cmd == cmdBlockStatus { // any length: no payload goes with it
		return op, 0, info.Bounds(q.off, uint64(q.n))
	}
	return op, flags, info.CheckRange(op, flags, q.off, uint64(q.n))
}

// refuse answers a command with an error, once its payload is out of the way.
func (c *conn) refuse(q *request, err error) {
	o := c.start(q, 0)
	o.err = err
	if q.cmd == cmdWrite && q.n > 0 {
		c.skip, c.skipped = uint64(q.n), o
		return
	}
	c.finish(o)
}

// start takes an op for a command that needs n bytes of memory.
func (c *conn) start(q *request, n int) *op {
	o := c.mustTakeOp(n)
	o.cmd, o.flags, o.cookie = q.cmd, q.flags, q.cookie
	o.req.Off, o.req.Len, o.req.Err = q.off, uint64(q.n), nil
	return o
}

// write starts a write whose payload begins with b, as far as it is there. It returns false
// if that is too short to be worth a buffer of its own; more must be read.
func (c *conn) write(q *request, flags blk.Flags, b []byte) bool {
	n := int(q.n)
	if len(b) < n && n < bigWrite {
		return false
	}
	if c.large = len(b) < n; c.large {
		o := c.start(q, bufSize(n))
		o.buf = getBuf(n)
		o.req.Op, o.req.Flags, o.req.Buf = blk.OpWrite, flags, o.buf
		c.half.begin(c)
		c.big, c.bigAt = o, copy(o.buf, b)
		c.r = c.w
		return true
	}
	o := c.start(q, 0)
	o.rb = c.rb
	o.rb.refs.Add(1)
	o.req.Op, o.req.Flags, o.req.Buf = blk.OpWrite, flags, b[:n:n]
	c.r += requestSize + n
	c.batch = append(c.batch, &o.req)
	return true
}

// other starts any other command.
func (c *conn) other(q *request, op blk.Op, flags blk.Flags) {
	switch q.cmd {
	case cmdBlockStatus, cmdCache:
		o := c.start(q, bufSize(statusSize))
		c.later(o)
	case cmdRead:
		n := int(q.n)
		o := c.start(q, bufSize(n))
		o.buf = getBuf(n)
		o.req.Op, o.req.Flags, o.req.Buf = op, flags, o.buf
		c.batch = append(c.batch, &o.req)
	default:
		o := c.start(q, 0)
		o.req.Op, o.req.Flags = op, flags
		c.batch = append(c.batch, &o.req)
	}
}

// submit hands on the parsed requests.
func (c *conn) submit() {
	if len(c.batch) == 0 {
		return
	}
	c.srv.count.requests.Add(uint64(len(c.batch)))
	c.pending.Add(int64(len(c.batch)))
	if n := changing(c.batch); n > 0 {
		c.changing.Add(n)
	}
	batch := c.batch
	c.batch = c.batch[:0] // first: what a panic leaves behind is not submitted again
	c.x.dev.Submit(batch)
	clear(batch)
}

// changing counts the requests of a batch that change what the device holds. A flush does not.
func changing(batch []*blk.Request) (n int64) {
	for _, r := range batch {
		if r.Op.Writes() {
			n++
		}
	}
	return n
}

// fill reads more, and waits until there is something.
func (c *conn) fill() error {
	for {
		n, err := c.fillNow()
		if err != errAgain {
			c.srv.count.bytesIn.Add(uint64(n))
			return err
		}
		c.idle()
		if err := c.s.wait(); err != nil {
			return err
		}
	}
}

// idle gives the receive buffer back: an idle connection holds none.
func (c *conn) idle() {
	if c.big == nil && c.r == c.w && c.rb != nil && c.rb.refs.Load() == 1 {
		recvPool.Put(c.rb)
		c.rb = nil
	}
}

func (c *conn) fillNow() (n int, err error) {
	if o := c.big; o != nil {
		// One read takes the rest of the large payload to its place and the next request's
		// header behind it.
		if !c.makeRoom(requestSize) {
			return 0, errNoRoom
		}
		room := len(o.buf) - c.bigAt + requestSize
		n, err = c.s.read(o.buf[c.bigAt:], c.rb.b[c.w:c.w+requestSize])
		k := min(n, len(o.buf)-c.bigAt)
		c.bigAt += k
		c.w += n - k
		c.short = n < room
		// Complete: it goes to the device with the others of this turn.
		if c.bigAt == len(o.buf) {
			c.batch = append(c.batch, &o.req)
			c.big = nil
			c.half.end()
		}
		return n, err
	}
	if !c.makeRoom(requestSize + bigWrite) {
		return 0, errNoRoom
	}
	end := len(c.rb.b)
	if c.large && c.r == c.w {
		// After a large write comes most likely another one: only its header is read here, so
		// that its payload is never copied.
		end = c.w + requestSize
	}
	n, err = c.s.read(c.rb.b[c.w:end], nil)
	c.w += n
	c.short = c.w < end
	return n, err
}

// makeRoom makes at least need bytes from c.r on fit into the receive buffer, with enough
// free to be worth a read. It returns false if it would have to wait for that on a reactor.
func (c *conn) makeRoom(need int) bool {
	const worth = 8 << 10
	switch {
	case c.rb == nil:
		c.newBuf()
	// Nothing unread, and the device reads nothing in it: begin at the front.
	case c.r == c.w && c.rb.refs.Load() == 1:
		c.r, c.w = 0, 0
	case len(c.rb.b)-c.r >= need && len(c.rb.b)-c.w >= worth:
	// The device reads nothing in it: move the unread bytes to the front.
	case c.rb.refs.Load() == 1:
		c.w = copy(c.rb.b, c.rb.b[c.r:c.w])
		c.r = 0
	default: // payload the device still reads: another buffer
		c.need = -1
		c.mu.Lock()
		for c.waitsForRoom() {
			if c.loop != nil {
				c.mu.Unlock()
				return false
			}
			c.room.Wait()
		}
		c.promised = recvSize // until dropBuf
		c.mu.Unlock()
		// The wait may have been long enough for the device to be done with this one.
		if c.rb.refs.Load() == 1 { // the device has them
			c.mu.Lock()
			c.promised = 0
			c.returnCharge()
			c.mu.Unlock()
			return c.makeRoom(need)
		}
		old, tail := c.rb, c.rb.b[c.r:c.w]
		c.newBuf()
		c.w = copy(c.rb.b, tail)
		c.dropBuf(old)
	}
	return true
}
