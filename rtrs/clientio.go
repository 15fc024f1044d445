package rtrs

import (
	"fmt"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// pump sends waiting requests, as far as there are permits.
func (c *Client) pump() {
	for c.connected > 0 && c.mayRun() {
		// Requests with Admin go before others and before Resume: they open the volumes that
		// the others name at the server.
		l := &c.admin
		if l.first == nil {
			if l = &c.queue; l.first == nil || !c.resumed {
				return
			}
		}
		// One request in each chunk: the server says how many there are.
		if len(c.free) == 0 {
			return
		}
		r := l.pop()
		// The server has smaller chunks than when it was taken.
		if len(r.Data) > int(c.chunks.MaxIO) {
			c.finish(r, ErrTooLarge)
			continue
		}
		c.send(c.choosers[c.cfg.Policy].choose(c.paths), r)
	}
}

// mayRun reports whether requests may be sent: no failed write may still happen at the
// server, and the server has not been promised that the client sends nothing (REST).
func (c *Client) mayRun() bool {
	return c.ghosts == 0 && c.restPath == nil
}

// send sends r, which is in no list by state, on p.
func (c *Client) send(p *ClientPath, r *Req) {
	permit := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.slots[permit] = r
	r.at, r.path, r.permit, r.session, r.sent = inFlight, p, permit, c.session, c.now
	r.con = 0
	// Requests of one flow stay in order on one connection; connection 0 is kept free of data
	// for the protocol's own messages.
	if !r.Admin {
		r.con = uint16(1 + r.Flow%uint32(len(p.cons)-1))
	}
	p.flight.push(r)
	p.cons[r.con].flight++
	if r.again != nil {
		c.stats.Retried++
		if r.again != p {
			p.stats.Failovers++
		}
	}

	// The chunk: data, user header, message (docs/protocol.md).
	msg := rtrswire.Req{Type: rtrswire.Write, UsrLen: uint16(len(r.Usr))}
	size := uint32(len(r.Data))
	if r.Op == Read {
		msg.Type = rtrswire.Read
		// A key for this one request: the server can write into its memory until the key is
		// revoked, which the answer says or revoke does.
		if size > 0 {
			r.hasKey = true
			msg.SGCnt = 1
			msg.Desc.Len = size
			r.key, msg.Desc.Addr = c.env.Grant(p, int(r.con), r.Data)
			msg.Desc.Key = r.key
			if c.cfg.RemoteInval {
				msg.Flags = rtrswire.NeedInval
			}
		}
		p.stats.Reads++
		p.stats.ReadBytes += uint64(len(r.Usr)) + uint64(size)
	} else {
		p.stats.Writes++
		p.stats.WriteBytes += uint64(len(r.Usr)) + uint64(size)
	}
	to := &p.descs[permit]
	c.op = transport.Op{Kind: transport.OpWriteImm, Key: to.Key, Addr: to.Addr,
		Imm: uint32(c.chunks.Req(permit, size+uint32(len(r.Usr))))}
	if r.Op == Write {
		c.op.Data = r.Data
	} else {
		// A READ sends no data, but its header lies where it would lie behind that.
		c.op.Addr += uint64(size)
	}
	c.op.Tail = msg.Append(append(c.tail[:0], r.Usr...))
	p.post(int(r.con), &c.op)
	// Its memory is the caller's again when it is answered and this is sent.
	if r.post = 0; len(c.op.Data) > 0 {
		r.post = p.cons[r.con].posted
	}
	c.op.Data = nil
}

// post posts op to connection conn.
func (p *ClientPath) post(conn int, op *transport.Op) {
	p.cons[conn].posted++
	p.c.env.Post(p, conn, op)
}

// notice sends a message of ours, or a heartbeat's immediate.
func (p *ClientPath) notice(m []byte) {
	p.c.op = transport.Op{Kind: transport.OpSend, Tail: m}
	p.post(0, &p.c.op)
}

// ack answers a HB_MSG of connection conn, now or when the HB_ACK before is sent.
func (p *ClientPath) ack(conn int) {
	if con := &p.cons[conn]; con.mayAck() {
		p.immediate(conn, rtrswire.ImmHeartbeatAck)
		con.acked = con.posted
	}
}

func (p *ClientPath) immediate(conn int, i rtrswire.Imm) {
	p.c.op = transport.Op{Kind: transport.OpWriteImm, Imm: uint32(i)}
	p.post(conn, &p.c.op)
}

// alive reports whether conn of p may bring messages, and counts the one that is being
// taken as a sign of life.
func (p *ClientPath) alive(conn int) bool {
	if p.state != Connected && p.state != Connecting || conn < 0 || conn >= len(p.cons) {
		return false
	}
	p.beat.heard = p.c.now
	if conn > 0 {
		p.cons[conn].asked = 0
	}
	return true
}

// Sent takes what the link of connection conn tells its handler; see Written. It is no sign
// of life.
func (p *ClientPath) Sent(now time.Duration, conn int, n int) {
	if p.state != Connected && p.state != Connecting || conn < 0 || conn >= len(p.cons) {
		return // all ends with Gone
	}
	p.c.enter(now)
	if p.cons[conn].wasSent(n) {
		p.ack(conn)
	}
	if p.unsent.n > 0 {
		p.settle()
	}
	p.c.leave()
}

// settle ends the requests that were answered whose memory is not read any more.
func (p *ClientPath) settle() {
	for r := p.unsent.first; r != nil; {
		next := r.next(byState)
		if r.post <= p.cons[r.con].sent {
			p.unsent.remove(r)
			p.c.finish(r, r.outcome)
		}
		r = next
	}
}

// Written, Received, Invalidated and Revoked take what the link of connection conn tells its
// handler. They return an error if the peer broke the protocol; the path is being hung up
// then.
func (p *ClientPath) Written(now time.Duration, conn int, w transport.Placed) (err error) {
	p.c.enter(now)
	if p.alive(conn) {
		switch i := rtrswire.Imm(w.Imm); i.Type() {
		case rtrswire.IORsp, rtrswire.IORspInv:
			err = p.answered(conn, i, nil)
		case rtrswire.Heartbeat:
			p.ack(conn)
		case rtrswire.HeartbeatAck:
			if conn == 0 {
				if d := p.beat.answered(p.c.now); d != 0 {
					p.stats.Latency = d
				}
			}
		}
	}
	p.c.leave()
	return err
}

// Invalidated takes a call of the link of connection conn to its handler; see Written.
func (p *ClientPath) Invalidated(now time.Duration, conn int, key uint32, filled int) error {
	p.c.enter(now)
	if p.alive(conn) {
		p.cons[conn].key, p.cons[conn].filled = key, filled
	}
	p.c.leave()
	return nil
}

// Revoked takes a call of the link of connection conn to its handler; see Written. It is no
// sign of life.
func (p *ClientPath) Revoked(now time.Duration, conn int, key uint32, filled int) error {
	if p.state != Connected {
		return nil // its requests are asked again
	}
	p.c.enter(now)
	for r := p.flight.first; r != nil; r = r.next(byState) {
		if r.revoking && r.key == key {
			r.revoking = false
			p.complete(r, p.checkFilled(r, filled, r.outcome))
			break
		}
	}
	p.c.leave()
	return nil
}

// Received takes a call of the link of connection conn to its handler; see Written.
func (p *ClientPath) Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) (err error) {
	p.c.enter(now)
	if p.alive(conn) {
		if hasImm {
			err = p.rkey(conn, data, rtrswire.Imm(imm))
		} else if err = p.message(conn, data); err != nil && p.state != Closing {
			err = p.violation(err)
		}
	}
	p.c.leave()
	return err
}

// rkey takes an answer that brings its chunk's new key.
func (p *ClientPath) rkey(conn int, data []byte, i rtrswire.Imm) error {
	k, err := rtrswire.ParseRKeyRsp(data)
	if err != nil {
		return p.violation(err)
	}
	if t := i.Type(); t != rtrswire.IORsp && t != rtrswire.IORspInv {
		return p.violation(fmt.Errorf("%w: an RKEY_RSP with an immediate of type %d", ErrProtocol, t))
	}
	return p.answered(conn, i, &k)
}

// answered ends the request whose permit the server named in i. k is the chunk's new key,
// or nil.
func (p *ClientPath) answered(conn int, i rtrswire.Imm, k *rtrswire.RKeyRsp) error {
	c := p.c
	permit, errno, _ := i.Done()
	if !clientTakes[p.state][someAnswer] {
		return p.violation(fmt.Errorf("%w: an answer before the path is connected", ErrProtocol))
	}
	// The server's word picks a slot of ours: each field is checked before it is used.
	if permit >= c.chunks.Depth || k != nil && uint32(k.BufID) != permit {
		return p.violation(fmt.Errorf("%w: an answer to chunk %d of %d, or a new key for another", ErrProtocol, permit, c.chunks.Depth))
	}
	r := c.slots[permit]
	// An answer twice, or to a request of another path, would end a request whose memory is
	// still in use.
	if r == nil || r.path != p || int(r.con) != conn || r.revoking {
		return p.violation(fmt.Errorf("%w: an answer to chunk %d, which has no request on connection %d", ErrProtocol, permit, conn))
	}
	if k != nil {
		p.descs[permit].Key = k.Key
	}
	var err error
	if errno != 0 {
		err = answered(errno)
	}
	// Whatever the answer was, the memory is the caller's again now, and the server may no
	// longer write there.
	if r.hasKey {
		filled, how := p.revoke(r)
		switch how {
		case transport.Busy:
			return p.violation(fmt.Errorf("%w: memory of a request is being written after its answer", ErrProtocol))
		case transport.Pending:
			// It counts as answered when the server cannot write any more. Should the path be
			// lost before, it is asked again: nobody knows then what its memory holds.
			r.revoking, r.outcome = true, err
			return nil
		}
		err = p.checkFilled(r, filled, err)
	}
	p.complete(r, err)
	return nil
}

// checkFilled returns err, or that the answer to the read r was not all there.
func (p *ClientPath) checkFilled(r *Req, filled int, err error) error {
	if err != nil || filled == transport.Unfilled || filled >= len(r.Data) {
		return err
	}
	// The other bytes there are of another request, perhaps of another volume and another
	// user of it.
	err = rdserr.With(ErrShortRead, "a read of %d bytes was answered with %d", len(r.Data), filled)
	p.c.event(Event{Kind: EventViolation, Client: p, Err: err})
	return err
}

// complete ends r, which was answered and whose memory the server can write no more, once
// nothing reads it either: the answer may overtake the completion of what was posted, and a
// retransmission would read it until then.
func (p *ClientPath) complete(r *Req, err error) {
	c := p.c
	con := &p.cons[r.con]
	p.slowTold = p.slowTold && p.flight.first != r // an event may tell of the next one
	p.flight.remove(r)
	con.flight--
	c.slots[r.permit] = nil
	c.free = append(c.free, r.permit)
	if con.sent < r.post {
		r.at, r.outcome = unsent, err
		p.unsent.push(r)
		return
	}
	// Last: Done may submit the next request, with this permit.
	c.finish(r, err)
}

// revoke ends the key of r's memory, if the server has not, and tells how much the
// server has written there.
func (p *ClientPath) revoke(r *Req) (filled int, how transport.Revocation) {
	r.hasKey = false
	// The server has done so, right before its answer.
	if con := &p.cons[r.con]; con.key == r.key {
		con.key = 0
		return con.filled, transport.Idle
	}
	return p.c.env.Take(p, r.key)
}

// message takes a send without an immediate.
func (p *ClientPath) message(conn int, data []byte) error {
	t, err := rtrswire.MessageType(data)
	if err != nil {
		return err
	}
	what := arrivalOf(t)
	if err := p.cons[conn].taken(p.chunks.Depth); err != nil { // REST can be asked without end
		return err
	}
	switch {
	// The protocol's own messages go on connection 0, and none before all connections stand.
	case conn != 0 || len(p.cons) < p.c.cfg.Conns:
		return fmt.Errorf("%w: a message of type %#x on connection %d of %d", ErrProtocol, uint16(t), conn, len(p.cons))
	case !clientTakes[p.state][what]:
		return fmt.Errorf("%w: a message of type %#x while the path is %v", ErrProtocol, uint16(t), p.state)
	case what == someInfoRsp:
		return p.info(data)
	case what == someFenced:
		return p.fenced(data)
	}
	n, err := rtrswire.ParseNotice(data)
	switch {
	case err != nil:
		return err
	case what == someRefused && n.Errno == 0:
		return fmt.Errorf("%w: a refusal without a reason", ErrProtocol)
	case what == someRefused:
		p.refused(n.Errno)
	case what == someRest:
		p.onRest()
	case p.c.restPath == p: // WAKE
		p.c.restPath = nil
	}
	return nil
}

// info takes an INFO_RSP.
func (p *ClientPath) info(data []byte) error {
	descs, err := rtrswire.ParseInfoRsp(data, p.chunks)
	if err != nil {
		return err
	}
	var g uint32
	if p.fences() {
		g = rtrswire.Generation(data)
	}
	return p.connect(g, descs)
}

// onRest answers whether the server may give the pages of its chunks back: only if no
// request may be using one. After a yes nothing is sent until the server's WAKE.
func (p *ClientPath) onRest() {
	c := p.c
	n := rtrswire.Notice{Type: rtrswire.RestedType}
	// A request, one that waits, or one of a lost path that may still reach a chunk: the
	// server must not take the pages from under it.
	if len(c.free) != c.Depth() || c.all.n > 0 || len(c.epochs) > 0 || c.restPath != nil {
		n.Errno = errnoBusy
	} else {
		c.restPath, c.restAt = p, c.now
	}
	p.notice(n.Append(c.tail[:0]))
}

// tick carries out everything that is due on p.
func (p *ClientPath) tick(now time.Duration) {
	switch p.state {
	case Reconnecting:
		if c := p.c; c.creator != nil && c.fresh() {
			// It waits for the path that creates the session, or fails to: uncreate arms it.
			return
		}
		if p.at <= now {
			p.start()
		}
		p.c.arm(p.at)
	case Connecting:
		if p.at > now {
			p.c.arm(p.at)
		} else {
			p.lose(ErrTimeout)
		}
	case Connected:
		p.watch(now)
	}
}

// watch looks for signs of life, and for requests that take too long.
func (p *ClientPath) watch(now time.Duration) {
	// The first was sent earliest, so the others have more time left.
	if r := p.flight.first; r != nil {
		switch t := r.sent + p.c.cfg.IOTimeout; {
		case t > now:
			p.c.arm(t)
		case p.fences():
			p.slow()
		default:
			p.timeout()
			return
		}
	}
	// The WAKE does not come: the server may be unable to send it, and requests wait.
	if p.c.restPath == p && now-p.c.restAt >= p.c.cfg.ConnTimeout {
		p.lose(ErrTimeout)
		return
	}
	if p.beat.next <= now {
		send, dead := p.beat.tick(now)
		if dead || !p.askCons(now) {
			p.lose(ErrHeartbeat)
			return
		}
		if send {
			p.immediate(0, rtrswire.ImmHeartbeat)
		}
	}
	p.c.arm(p.beat.next)
}

// slow reports a request that takes longer than its limit on a path that works, as
// heartbeats on each connection show: the store has it. Giving the path up would not help,
// because no request of this attempt is sent again before the store is done with all of
// them; requests to other stores would wait as long. (A kernel answers heartbeats on
// connection 0 alone, so that its other connections may be dead, and are given up.)
func (p *ClientPath) slow() {
	if p.slowTold {
		return
	}
	p.slowTold = true
	p.c.stats.Timeouts++
	p.c.event(Event{Kind: EventTimeout, Client: p})
}

// askCons watches over each connection of a server of our own kind, so that one
// that hangs alone, with requests on it, is noticed too. (A kernel wants
// heartbeats on connection 0 alone.)
func (p *ClientPath) askCons(now time.Duration) (alive bool) {
	if !p.fences() {
		return true
	}
	limit := p.c.cfg.ConnTimeout
	if p.beat.asked != 0 && now-p.beat.asked >= limit {
		return false
	}
	for i := 1; i < len(p.cons); i++ {
		switch con := &p.cons[i]; {
		case con.asked != 0 && now-con.asked >= limit:
			return false
		// Only where something is awaited: an idle connection has nothing to lose.
		case con.asked == 0 && con.flight > 0:
			con.asked = max(now, 1)
			p.immediate(i, rtrswire.ImmHeartbeat)
		}
	}
	return true
}
