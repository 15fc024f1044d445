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
func (p *ServerPath) Written(now time.Duration, conn int, key uint32, addr uint64, n int, imm uint32) (err error) {
	p.s.enter(now)
	if p.alive(conn) {
		switch i := rtrswire.Imm(imm); i.Type() {
		case rtrswire.IOReq:
			err = p.request(conn, key, addr, n, i)
		case rtrswire.Heartbeat:
			p.immediate(conn, rtrswire.ImmHeartbeatAck)
		case rtrswire.HeartbeatAck:
			switch {
			case conn != 0:
			case p.state == Fencing:
				p.acks++
				p.s.pathEnded = true // it may take its place now
			default:
				p.beat.answered(p.s.now)
			}
		}
	}
	p.s.leave()
	return err
}

// request takes the request that the client wrote into the n bytes at addr.
//
// A client that breaks the rules of chunks and keys loses its path; a client that fills a
// chunk wrongly gets an error, so that it has its permit back. (A kernel drops some of
// those silently.) request checks that exactly the request was written, which no kernel
// does: a request that names data it did not send would write what the chunk held before.
func (p *ServerPath) request(conn int, key uint32, addr uint64, n int, i rtrswire.Imm) error {
	s, e := p.s, p.ses
	if !serverTakes[p.state][someRequest] {
		return p.violation(fmt.Errorf("%w: a request before the path is connected", ErrProtocol))
	}
	id, off, err := s.chunks.ParseReq(i)
	// The chunk is the client's again with the answer, so that it loses a request and not a
	// permit.
	if err != nil {
		return p.violation(err)
	}
	c, k := &e.chunks[id], &p.keys[id]
	// The store is still reading or writing there: a client that fences waits until it is not.
	if c.req != nil && (p.fences || c.req.Path == p) {
		return p.violation(fmt.Errorf("%w: a request in chunk %d, which has one", ErrProtocol, id))
	}
	// Unsigned: an address below the chunk's becomes a large offset, and is refused with those
	// above its end.
	at := addr - k.Addr
	if key != k.Key || n <= 0 || at > uint64(s.chunks.Size()) || uint64(n) > uint64(s.chunks.Size())-at {
		return p.violation(fmt.Errorf("%w: a request in chunk %d, written elsewhere", ErrProtocol, id))
	}
	// From here on the client cannot change the request. A write that has begun and goes on
	// means that it wrote twice with one key.
	if !s.cfg.NoInvalidate && !s.env.Revoke(p, key) {
		return p.violation(fmt.Errorf("%w: chunk %d is being written after its request", ErrProtocol, id))
	}
	chunk := e.chunk(id)
	e.touch(c, uint32(at)+uint32(n))
	m, l, err := s.chunks.ParseRequest(chunk, off)
	switch {
	// It is neither a read nor a write: the client speaks another protocol.
	case err == rtrswire.ErrType:
		return p.violation(err)
	// The bytes written must be exactly those the message describes: otherwise it would be
	// done with old content of the chunk.
	case err == nil && (at != uint64(l.Start(m.Type)) || at+uint64(n) != uint64(l.End)):
		err = ErrProtocol
	case err == nil && int(m.UsrLen) > MaxUsr:
		err = ErrTooLarge
	}
	if err != nil && c.req != nil {
		return p.violation(fmt.Errorf("%w: a wrong request in chunk %d, which has one", ErrProtocol, id))
	}
	r := e.newReq()
	r.Session, r.Path, r.chunk, r.con, r.msg, r.stale = e, p, id, uint16(conn), m, false
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
	if c.req != nil {
		return e.failOver(r)
	}
	e.take(r)
	s.env.Request(r)
	return nil
}

// take puts r in its chunk, which is free.
func (e *ServerSession) take(r *ServerReq) {
	e.chunks[r.chunk].req = r
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
func (e *ServerSession) failOver(r *ServerReq) error {
	c, p := &e.chunks[r.chunk], r.Path
	if old := c.req; old.Op != r.Op || len(old.Data) != len(r.Data) || !bytes.Equal(old.Usr, r.Usr) {
		e.discard(r)
		return p.violation(fmt.Errorf("%w: a request in chunk %d, which has another one", ErrProtocol, r.chunk))
	}
	for _, was := range []*ServerReq{c.req, c.next} {
		if was != nil && was.Path.state < Closing {
			was.Path.lose(rdserr.With(rdserr.ErrReset, "its client sends its requests on another path"))
		}
	}
	c.next = r
	return nil
}

// resume begins the request that waited for chunk c.
func (e *ServerSession) resume(c *chunk) {
	r := c.next
	c.next = nil
	e.take(r)
	e.s.env.Request(r)
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
	r.Path, r.Data, r.Usr = nil, nil, nil
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
			s.env.Post(p, con, &s.op)
		}
		// This goes after the data and before the status, on the same connection: when the client
		// reads the status, its memory can no longer be written.
		if r.msg.NeedInval() {
			s.op = transport.Op{Kind: transport.OpSendInval, Key: r.msg.Desc.Key}
			s.env.Post(p, con, &s.op)
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
	k.Key = s.env.Renew(p, r.Session.chunk(r.chunk), k.Addr)
	s.op = transport.Op{Kind: transport.OpSendImm, Imm: uint32(imm),
		Tail: rtrswire.RKeyRsp{BufID: uint16(r.chunk), Key: k.Key}.Append(s.tail[:0])}
	s.env.Post(p, con, &s.op)
}
