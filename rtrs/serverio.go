package rtrs

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Written takes a call of the link of connection conn to its handler; see Lost.
func (p *ServerPath) Written(now time.Duration, conn int, w transport.Placed) (err error) {
	p.s.enter(now)
	if p.alive(conn) {
		switch i := rtrswire.Imm(w.Imm); i.Type() {
		case rtrswire.IOReq:
			err = p.arrived(conn, w, i)
		case rtrswire.Heartbeat:
			p.ack(conn)
		case rtrswire.HeartbeatAck:
			switch {
			case conn != 0:
			// One that was not asked for says nothing, and is not worth a look at all that wait.
			case p.state == Fencing && p.acks < p.asks:
				p.acks++
				p.s.pathEnded = true // it may take its place now
			case p.state == Fencing:
			default:
				p.beat.answered(p.s.now)
			}
		}
	}
	p.s.leave()
	return err
}

// placed is where a request was written in its chunk, and where it says that its message is.
type placed struct {
	known bool   // at is; else the link does not tell
	at, n uint32 // of the bytes that were written
	msg   uint32
}

// arrived takes the request that the client wrote with w. It is taken when the client
// cannot change it any more: at once, unless the end of its chunk's key is Pending.
//
// A client that breaks the rules of chunks and keys loses its path; a client that fills a
// chunk wrongly gets an error, so that it has its permit back. (A kernel drops some of
// those silently.) It is checked that exactly the request was written, which no kernel does:
// a request that names data it did not send would write what the chunk held before. Where the
// link does not tell where the bytes lie, their number has to be right.
func (p *ServerPath) arrived(conn int, w transport.Placed, i rtrswire.Imm) error {
	s, e := p.s, p.ses
	if !serverTakes[p.state][someRequest] {
		return p.violation(fmt.Errorf("%w: a request before the path is connected", ErrProtocol))
	}
	id, off, err := s.chunks.ParseReq(i)
	if err == nil { // without keys of its own for each request a client need not have the last answer
		err = p.cons[conn].taken(s.chunks.Depth)
	}
	// The chunk is the client's again with the answer, so that it loses a request and not a
	// permit.
	if err != nil {
		return p.violation(err)
	}
	c, k := &e.chunks[id], &p.keys[id]
	// The store is still reading or writing there: a client that fences waits until it is not.
	// So does one that has another waiting there: that would wait on for a path that is given up.
	if c.req != nil && (p.fences || c.req.Path == p || c.next != nil && c.next.Path == p) {
		return p.violation(fmt.Errorf("%w: a request in chunk %d, which has one", ErrProtocol, id))
	}
	// Unsigned: an address below the chunk's becomes a large offset, and is refused with those
	// above its end.
	at, size := uint64(0), uint64(s.chunks.Size())
	if w.Known {
		at = w.Addr - k.Addr
	}
	if w.Known && w.Key != k.Key || w.N <= 0 || at > size || uint64(w.N) > size-at {
		return p.violation(fmt.Errorf("%w: a request in chunk %d, written elsewhere", ErrProtocol, id))
	}
	how := transport.Idle
	if !s.cfg.NoInvalidate {
		how = s.env.Revoke(p, k.Key)
	}
	// A write that has begun and goes on means that it wrote twice with one key.
	if how == transport.Busy {
		return p.violation(fmt.Errorf("%w: chunk %d is being written after its request", ErrProtocol, id))
	}
	r := e.newReq()
	r.Session, r.Path, r.chunk, r.con, r.stale = e, p, id, uint16(conn), false
	r.place = placed{known: w.Known, at: uint32(at), n: uint32(w.N), msg: off}
	if how == transport.Pending {
		r.arriving = true
		if c.req == nil {
			e.take(r)
		} else {
			e.wait(r)
		}
		return nil
	}
	return p.taken(r)
}

// Revoked takes a call of the link of connection conn to its handler; see Lost. It is no sign
// of life.
func (p *ServerPath) Revoked(now time.Duration, conn int, key uint32, _ int) (err error) {
	if p.state != Connected {
		return nil // what was arriving ends with Gone
	}
	p.s.enter(now)
	for i := range p.keys {
		if p.keys[i].Key != key {
			continue
		}
		c := &p.ses.chunks[i]
		for _, r := range []*ServerReq{c.req, c.next} {
			if r != nil && r.Path == p && r.arriving {
				r.arriving = false
				err = p.taken(r)
				break
			}
		}
		break
	}
	p.s.leave()
	return err
}

// taken begins r, which the client cannot change from here on. It is in its chunk already if
// it was arriving.
func (p *ServerPath) taken(r *ServerReq) error {
	s, e := p.s, p.ses
	c := &e.chunks[r.chunk]
	chunk := e.chunk(r.chunk)
	m, l, err := s.chunks.ParseRequest(chunk, r.place.msg)
	if err == nil && !r.place.known {
		r.place.at = l.Start(m.Type)
	}
	// Without a place, and without a message that says it, it may be anywhere.
	touched := r.place.at + r.place.n
	if !r.place.known && err != nil {
		touched = s.chunks.Size()
	}
	e.touch(c, touched)
	switch {
	// It is neither a read nor a write: the client speaks another protocol.
	case err == rtrswire.ErrType:
		return p.refuse(r, err)
	// The bytes written must be exactly those the message describes: otherwise it would be
	// done with old content of the chunk.
	case err == nil && (r.place.at != l.Start(m.Type) || r.place.at+r.place.n != l.End):
		err = ErrProtocol
	case err == nil && int(m.UsrLen) > MaxUsr:
		err = ErrTooLarge
	}
	other := c.req != nil && c.req != r
	if err != nil && other {
		return p.refuse(r, fmt.Errorf("%w: a wrong request in chunk %d, which has one", ErrProtocol, r.chunk))
	}
	r.msg = m
	if err != nil {
		r.msg = rtrswire.Req{}
		e.take(r)
		s.Reply(s.now, r, 0, answered(badRequest(err)))
		return nil
	}
	// A copy: without invalidation the client could change the header while it is obeyed.
	r.Usr = append(r.usr[:0], chunk[l.Usr:l.Msg]...)
	if m.Type == rtrswire.Read {
		r.Op, r.Data = Read, chunk[:m.Desc.Len:m.Desc.Len]
		// The store will fill it, and then it has pages.
		e.touch(c, m.Desc.Len)
		p.stats.Reads++
		p.stats.ReadBytes += uint64(m.UsrLen) + uint64(m.Desc.Len)
	} else {
		r.Op, r.Data = Write, chunk[:l.Usr:l.Usr]
		p.stats.Writes++
		p.stats.WriteBytes += uint64(m.UsrLen) + uint64(l.Usr)
	}
	if other {
		return e.failOver(r)
	}
	e.take(r)
	s.env.Request(r)
	return nil
}

// refuse gives p up for r, which is in its chunk or nowhere.
func (p *ServerPath) refuse(r *ServerReq, err error) error {
	if c := &p.ses.chunks[r.chunk]; c.req == r {
		r.arriving = true // it ends with Gone
	} else if c.next != r {
		p.ses.discard(r)
	}
	return p.violation(err)
}

// take puts r in its chunk, which is free, if it is not there.
func (e *ServerSession) take(r *ServerReq) {
	c := &e.chunks[r.chunk]
	if c.req == r {
		return
	}
	c.req = r
	r.Path.inflight++
	e.active++
	e.seq++
	r.Seq = e.seq
}

// failOver has r wait for its chunk, which has a request. A client that does not fence, a
// kernel, sends what was in flight on a path that it has lost at once on another one, with
// the same chunk: that is all the fence there is. The old path is given up, so that the
// store need not begin what it had, and r begins when that was replied to. So no two are at
// the store.
//
// It has to be the same request, because the store is using the memory that was written anew.
// Nothing uses it while the old one is arriving.
func (e *ServerSession) failOver(r *ServerReq) error {
	c, p := &e.chunks[r.chunk], r.Path
	if old := c.req; !old.arriving && (old.Op != r.Op || len(old.Data) != len(r.Data) || !bytes.Equal(old.Usr, r.Usr)) {
		return p.refuse(r, fmt.Errorf("%w: a request in chunk %d, which has another one", ErrProtocol, r.chunk))
	}
	e.wait(r)
	return nil
}

// wait has r wait for its chunk, which has a request of another path. That path is given up,
// and so is one whose request waited before, which goes with it. What waited in the environment
// may be replied to by that (ServerEnv.Stale), and then r begins.
func (e *ServerSession) wait(r *ServerReq) {
	c := &e.chunks[r.chunk]
	for _, was := range []*ServerReq{c.req, c.next} {
		if was != nil && was != r && was.Path.state < Closing {
			was.Path.lose(rdserr.With(rdserr.ErrReset, "its client sends its requests on another path"))
		}
	}
	if c.next = r; c.req == nil {
		e.resume(c)
	}
}

// resume begins the request that waited for chunk c.
func (e *ServerSession) resume(c *chunk) {
	r := c.next
	c.next = nil
	e.take(r)
	if !r.arriving {
		e.s.env.Request(r)
	}
}

// badRequest returns the errno for a malformed request.
func badRequest(err error) uint16 {
	if errors.Is(err, ErrTooLarge) {
		return errnoTooLarge
	}
	return errnoInvalid
}

// newReq takes one from the spare ones.
func (e *ServerSession) newReq() *ServerReq {
	n := len(e.spare)
	if n == 0 {
		return &ServerReq{}
	}
	r := e.spare[n-1]
	e.spare = e.spare[:n-1]
	return r
}

// discard gives r back to the spare ones.
func (e *ServerSession) discard(r *ServerReq) {
	r.Path, r.Data, r.Usr, r.arriving = nil, nil, nil, false
	e.spare = append(e.spare, r)
}

// Reply ends r. Of a Read the first n bytes of Data are filled, and the others are sent as
// zeroes. err is nil or has a syscall.Errno in it. r may be used by another request at
// once.
func (s *Server) Reply(now time.Duration, r *ServerReq, n int, err error) {
	s.enter(now)
	e, p := r.Session, r.Path
	c := &e.chunks[r.chunk]
	if c.req != r {
		panic("rtrs: a request replied to twice")
	}
	c.req = nil
	p.inflight--
	e.active--
	if len(r.Data) >= smallUse {
		e.used = s.now
	}
	if e.active == 0 && e.touched > s.keep {
		s.arm(e.used + s.cfg.TrimAfter)
	}
	// On a path that is given up no answer is needed: the client has it fenced and asks
	// again.
	if p.state == Connected {
		p.answer(r, n, err)
	}
	e.discard(r)
	// This was the last one: no request of this attempt can happen at the store any more,
	// and fences that wait for that are answered.
	if p.state == Draining && p.inflight == 0 {
		p.gone()
	}
	if c.next != nil {
		e.resume(c)
	}
	s.leave()
}

// dropArriving ends the requests of p, whose links are closed, that nobody has read.
func (p *ServerPath) dropArriving() {
	for i := range p.keys {
		if r := p.ses.chunks[i].req; r != nil && r.Path == p && r.arriving {
			p.s.Reply(p.s.now, r, 0, nil)
		}
	}
}

// answer sends the outcome of r on the connection that it came on: data, the
// end of the client's key if it asked for that, the status.
func (p *ServerPath) answer(r *ServerReq, n int, err error) {
	s := p.s
	con := int(r.con)
	var errno uint16
	if err != nil {
		p.stats.Errors++
		// Done has 9 bits for the errno, and sends EIO for one that does not fit.
		errno = uint16(min(rdserr.Errno(err), 1<<15))
	}
	if r.msg.SGCnt == 1 {
		if err == nil {
			if n < len(r.Data) {
				// Bytes that the store did not fill are old content of the chunk, perhaps of another
				// volume.
				clear(r.Data[max(n, 0):])
			}
			s.op = transport.Op{Kind: transport.OpWrite, Key: r.msg.Desc.Key, Addr: r.msg.Desc.Addr, Data: r.Data}
			p.post(con, &s.op)
		}
		// This goes after the data and before the status, on the same connection: when the client
		// reads the status, its memory can no longer be written.
		if r.msg.NeedInval() {
			s.op = transport.Op{Kind: transport.OpSendInval, Key: r.msg.Desc.Key}
			p.post(con, &s.op)
		}
	}
	imm := rtrswire.Done(r.chunk, errno, r.msg.NeedInval())
	if s.cfg.NoInvalidate {
		p.immediate(con, imm)
		return
	}
	// The old key was revoked when the request came: the chunk can be written again with the
	// new one alone, which only this answer brings.
	k := &p.keys[r.chunk]
	k.Key, _ = s.env.Grant(p, con, r.Session.chunk(r.chunk), k.Addr)
	s.op = transport.Op{Kind: transport.OpSendImm, Imm: uint32(imm),
		Tail: rtrswire.RKeyRsp{BufID: uint16(r.chunk), Key: k.Key}.Append(s.tail[:0])}
	p.post(con, &s.op)
}
