package rtrs

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// ServerPath is one attempt of a path of a client: another attempt to connect it is another
// ServerPath. Its exported fields do not change, but for Ctx.
type ServerPath struct {
	Local, Remote netip.AddrPort // of its first connection
	Ctx           any            // the shell's

	s       *Server
	session uuid
	uuid    uuid
	attempt uint16 // which attempt this is, by the client's count
	fences  bool   // the client understands our own messages

	// The life cycle (state.go; docs/protocol.md, "The life of a path").

	state State
	since time.Duration
	err   error // why it is given up
	// at is, in Connecting, and in Fencing while rival is set, when that has taken too long,
	// and in Closing, until hung is set, when the links are closed.
	at   time.Duration
	hung bool // ServerEnv.Hang was called
	// rival is, in Fencing, the session that has p's name and lives; p's client has to show
	// that it does, too, before it takes its place (outlives).
	rival *ServerSession
	asks  int // how often its client was asked for that
	acks  int // and has answered

	// Links and keys.

	name string         // of the session, from the INFO_REQ
	ses  *ServerSession // nil until Connected
	// keys are where each chunk is and with which key the client may write there, once.
	// With NoInvalidate one key is for all, and lasts.
	keys  []rtrswire.Desc
	cons  []serverCon // as many as the CON_REQ says; nil inside: not made yet
	made  int         // of cons
	beat  heartbeat
	asked bool // a REST was sent on it that is not answered yet

	// inflight counts requests that Reply was not called for; the path is Draining
	// until there are none.
	inflight int
	stats    ServerPathStats
}

type serverCon struct {
	*ServerCon
	sends
}

// ConPlaceBytes is what a path takes for each connection that its first one announces, made or not.
const ConPlaceBytes = 40

// add makes connection c of p.
func (p *ServerPath) add(c *ServerCon) {
	c.Path, p.cons[c.Num].ServerCon = p, c
	p.made++
}

// farewell is how long a client has to read why it is refused.
const farewell = 50 * time.Millisecond

// ServerPathInfo describes a path.
type ServerPathInfo struct {
	Local, Remote netip.AddrPort
	Session       string // name, "" until it is known
	State         State
	Since         time.Duration
	Err           error // why it is given up
	Stats         ServerPathStats
}

// Info describes p.
func (p *ServerPath) Info() ServerPathInfo {
	st := p.stats
	st.Inflight = p.inflight
	return ServerPathInfo{p.Local, p.Remote, p.name, p.state, p.since, p.err, st}
}

// State is where p stands.
func (p *ServerPath) State() State { return p.state }

// Session is nil until p is connected.
func (p *ServerPath) Session() *ServerSession { return p.ses }

// ResetStats sets the statistics to zero, but for Inflight.
func (p *ServerPath) ResetStats() { p.stats = ServerPathStats{} }

func (p *ServerPath) setState(to State) {
	serverMay.check(p.state, to)
	from := p.state
	p.state, p.since = to, p.s.now
	p.s.event(Event{Kind: EventPath, Server: p, From: from, To: to, Err: p.err})
}

// lose gives p up and closes its links. Its requests are stale from now on, and their
// chunks taken until they are replied to. err is the reason, nil if it was asked for.
func (p *ServerPath) lose(err error) {
	was := p.closing(err)
	p.hang()
	p.closed(was)
}

// dismiss gives p up and tells the client why, if it understands that: its links are
// closed after a while then, so that it can read it. Before it has said a name it may be
// making connections still, and then takes no message; its next attempt is told.
func (p *ServerPath) dismiss(errno uint16, err error) {
	if !p.fences || p.state == Connecting {
		p.lose(err)
		return
	}
	p.notice(rtrswire.RefusedType, errno)
	was := p.closing(err)
	p.at = p.s.now + farewell
	p.s.arm(p.at)
	p.closed(was)
}

func (p *ServerPath) closing(err error) (was State) {
	was = p.state
	p.err = err
	p.setState(Closing)
	return was
}

// pulse is that of p's heartbeats.
func (p *ServerPath) pulse() pulse {
	return p.s.cfg.Kernel.pulse(!p.fences, pulse{p.s.cfg.HeartbeatEvery, p.s.cfg.MissedLimit})
}

// patience is how long p may take to be connected: of an rdsd for everything, of a kernel for
// each connection.
func (p *ServerPath) patience() time.Duration {
	if !p.fences {
		return p.s.cfg.Kernel.ConnectTimeout
	}
	return p.s.cfg.ConnectTimeout
}

// closed takes p out of its session once its links are being closed.
func (p *ServerPath) closed(was State) {
	// Paths that are Fencing, and fences, may have waited for this one.
	p.s.pathEnded = true
	if was == Connected {
		p.ses.leave(p)
	}
}

func (p *ServerPath) hang() {
	if !p.hung {
		p.hung = true
		p.s.env.Hang(p)
	}
}

// refuseWith tells the client why, and gives p up.
func (p *ServerPath) refuseWith(errno uint16, err error) {
	p.s.stats.Refused++
	p.s.event(Event{Kind: EventRefused, Server: p, Err: err})
	p.dismiss(errno, err)
}

func (p *ServerPath) violation(err error) error {
	p.s.stats.Violated++
	p.s.event(Event{Kind: EventViolation, Server: p, Err: err})
	p.lose(err)
	return err
}

// Lost, Gone, Sent, Written, Received, Invalidated and Revoked are as ClientPath's.
func (p *ServerPath) Lost(now time.Duration, conn int, err error) {
	p.s.enter(now)
	switch {
	case p.state < Closing:
		p.lose(err)
	case p.state == Closing:
		p.hang()
	}
	p.s.leave()
}

// Gone reports that the links are closed, as ServerEnv.Hang asked.
func (p *ServerPath) Gone(now time.Duration) {
	if p.state != Closing || !p.hung {
		return
	}
	p.s.enter(now)
	p.dropArriving()
	for i := range p.keys {
		p.s.env.Revoke(p, p.keys[i].Key)
		if p.s.cfg.NoInvalidate {
			break // one key for all
		}
	}
	p.keys = nil
	if p.inflight > 0 {
		p.setState(Draining)
	} else {
		p.gone()
	}
	p.s.leave()
}

// gone removes p when nothing of it can happen any more.
func (p *ServerPath) gone() {
	s := p.s
	p.setState(Dead)
	s.paths = without(s.paths, p)
	if s.of[p.session] = without(s.of[p.session], p); len(s.of[p.session]) == 0 {
		delete(s.of, p.session)
	}
	if p.ses != nil {
		p.ses.paths = without(p.ses.paths, p)
		p.ses.free()
	}
	s.pathEnded = true
}

// without returns ps without p, in memory of its own, because a caller may be ranging over
// ps.
func without(ps []*ServerPath, p *ServerPath) []*ServerPath {
	for i, q := range ps {
		if q == p {
			return append(ps[:i:i], ps[i+1:]...)
		}
	}
	return ps
}

func (p *ServerPath) notice(t rtrswire.Type, errno uint16) {
	p.send(rtrswire.Notice{Type: t, Errno: errno}.Append(p.s.tail[:0]))
}

// send sends a message on connection 0.
func (p *ServerPath) send(m []byte) {
	p.s.op = transport.Op{Kind: transport.OpSend, Tail: m}
	p.post(0, &p.s.op)
}

func (p *ServerPath) immediate(conn int, i rtrswire.Imm) {
	p.s.op = transport.Op{Kind: transport.OpWriteImm, Imm: uint32(i)}
	p.post(conn, &p.s.op)
}

// post posts op to connection conn.
func (p *ServerPath) post(conn int, op *transport.Op) {
	p.cons[conn].posted++
	p.s.env.Post(p, conn, op)
}

// ack answers a HB_MSG of connection conn, now or when the HB_ACK before is sent.
func (p *ServerPath) ack(conn int) {
	if con := &p.cons[conn]; con.mayAck() {
		p.immediate(conn, rtrswire.ImmHeartbeatAck)
		con.acked = con.posted
	}
}

// alive says that conn of p may bring something.
func (p *ServerPath) alive(conn int) bool {
	if p.state >= Closing || conn < 0 || conn >= len(p.cons) {
		return false
	}
	p.beat.heard = p.s.now
	return true
}

// Invalidated takes a call of the link of connection conn to its handler; see Lost. It ends
// the path: neither a client of ours nor a kernel's revokes keys.
func (p *ServerPath) Invalidated(now time.Duration, conn int, key uint32, _ int) (err error) {
	p.s.enter(now)
	if p.alive(conn) {
		err = p.violation(fmt.Errorf("%w: a client revoked a key of the server", ErrProtocol))
	}
	p.s.leave()
	return err
}

// Sent takes a call of the link of connection conn to its handler; see Lost. No request waits
// for it: the data of an answer lies in its chunk, which is used again when its client has
// the answer, so that the data has come; and the chunks are freed when all links are closed.
func (p *ServerPath) Sent(now time.Duration, conn int, n int) {
	if p.state >= Closing || conn < 0 || conn >= len(p.cons) {
		return
	}
	if p.cons[conn].wasSent(n) {
		p.s.enter(now)
		p.ack(conn)
		p.s.leave()
	}
}

// Received takes a call of the link of connection conn to its handler; see Lost.
func (p *ServerPath) Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) (err error) {
	p.s.enter(now)
	if p.alive(conn) {
		if hasImm || conn != 0 {
			err = fmt.Errorf("%w: a send with an immediate, or on connection %d", ErrProtocol, conn)
		} else {
			err = p.message(data)
		}
		if err != nil {
			p.violation(err)
		}
	}
	p.s.leave()
	return err
}

func (p *ServerPath) message(data []byte) error {
	t, err := rtrswire.MessageType(data)
	if err == nil { // FENCE can be asked without end
		err = p.cons[0].taken(p.s.chunks.Depth)
	}
	if err != nil {
		return err
	}
	switch what := arrivalOf(t); {
	case !serverTakes[p.state][what], what == someFence && !p.fences, what == someRested && !p.asked:
		return fmt.Errorf("%w: a message of type %#x while the path is %v", ErrProtocol, uint16(t), p.state)
	case what == someInfoReq:
		return p.info(data)
	case what == someFence:
		f, err := rtrswire.ParseFence(data)
		if err != nil {
			return err
		}
		return p.fence(f)
	default: // RESTED
		n, err := rtrswire.ParseNotice(data)
		if err != nil {
			return err
		}
		p.asked = false
		p.ses.onRested(p, n.Errno == 0)
		return nil
	}
}

// info takes an INFO_REQ.
func (p *ServerPath) info(data []byte) (err error) {
	for i := range p.cons {
		// The path is usable only as a whole, and the INFO_RSP says that it is.
		if p.cons[i].ServerCon == nil {
			return fmt.Errorf("%w: an INFO_REQ before connection %d", ErrProtocol, i)
		}
	}
	if p.name, err = rtrswire.ParseInfoReq(data); err != nil {
		return err
	}
	// It is not connected yet: older attempts, and a session that it replaces, have to
	// end first.
	p.setState(Fencing)
	p.s.pathEnded = true
	return nil
}

// tick carries out everything that is due on p.
func (p *ServerPath) tick(now time.Duration) {
	switch {
	case p.state == Connecting && p.at <= now:
		p.lose(ErrTimeout)
	case p.state == Fencing && p.rival != nil && p.at <= now:
		p.yield()
	case p.state == Closing && !p.hung && p.at <= now:
		p.hang()
	case p.state == Connecting, p.state == Fencing && p.rival != nil, p.state == Closing && !p.hung:
		p.s.arm(p.at)
	case p.state == Connected:
		if p.beat.next <= now {
			send, dead := p.beat.tick(now)
			if dead {
				p.lose(ErrHeartbeat)
				return
			}
			if send {
				p.immediate(0, rtrswire.ImmHeartbeat)
			}
		}
		p.s.arm(p.beat.next)
	}
}
