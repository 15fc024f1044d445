package rtrs

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// ClientPath is one path of a client. Its exported fields do not change, but
// for Ctx.
type ClientPath struct {
	Local, Remote netip.AddrPort // Local may be without an address or port: the system chooses
	Ctx           any            // the shell's

	c    *Client
	uuid [rtrswire.UUIDLen]byte

	// The life cycle (state.go; docs/protocol.md, "The life of a path").

	state State
	// want is the state after Closing: Reconnecting, or Closed or Dead when the
	// administrator has ended the path.
	want  State
	since time.Duration // when it came to be in state
	down  time.Duration // when it was made, or ceased to be Connected
	err   error         // why it was lost or could not be made, the last time
	errAt time.Duration // when that was
	// at is, in Reconnecting, when the path is tried again, and in Connecting, when
	// that has taken too long.
	at time.Duration
	// attempt counts the attempts to connect the path, and tells the server which of two is
	// the newer. Each attempt that was connected is an epoch (fence.go).
	attempt      uint16
	failures     int  // attempts that failed in a row: the exponent of the backoff
	noBackoff    bool // the administrator asked: the next attempt does not wait
	wasConnected bool // was connected before
	creates      bool // this attempt may create the session
	kernel       bool // the server is one, or nobody knows yet
	overdue      bool // a request failed by its limit, and the path is to be given up for it
	stats        PathStats

	// Of this attempt, which begins with start and ends with Gone.
	//
	// Invariant, while Connected: len(cons) == Conns, and flight.n is the sum of the
	// flights of cons.

	cons     []clientCon // those that are made; connection 0 carries everything but requests for the store
	chunks   rtrswire.Chunks
	flags    uint32          // of the CON_RSP: what the server understands
	descs    []rtrswire.Desc // where the server's chunks are and with which key, by permit
	flight   list            // requests, sent first at first
	unsent   list            // requests that are answered and whose memory is still read
	slowTold bool            // an event has said that the first of flight takes longer than its limit
	beat     heartbeat
}

// clientCon is one connection of a path.
type clientCon struct {
	flight int           // requests that are to be answered on it
	asked  time.Duration // when a heartbeat was sent on it that is not answered, 0: none
	// key is the one that the server revoked last on this connection, and filled how much
	// of its memory was written: the answer that follows is about it (revoke).
	key    uint32
	filled int
	sends
}

// PathInfo describes a path.
type PathInfo struct {
	Local, Remote netip.AddrPort
	State         State
	Since         time.Duration // when it came to be in that state
	Down          time.Duration // since when it is not Connected, however often it was tried meanwhile; of one that is it says nothing
	Attempts      int           // to connect, that failed in a row
	Err           error         // why it was lost or could not be made, the last time
	ErrAt         time.Duration // when that was
	RetryAt       time.Duration // when it is tried again; 0: it does not wait for that
	Stats         PathStats
}

// Info describes p.
func (p *ClientPath) Info() PathInfo {
	s := p.stats
	s.Inflight = p.flight.n
	i := PathInfo{Local: p.Local, Remote: p.Remote, State: p.state, Since: p.since, Down: p.down, Attempts: p.failures, Err: p.err, ErrAt: p.errAt, Stats: s}
	if p.state == Reconnecting {
		i.RetryAt = p.at
	}
	return i
}

// GivenUp reports whether p is Closed because it is out of attempts: nobody has asked for that.
func (p *ClientPath) GivenUp() bool { return p.state == Closed && p.want == Reconnecting }

// Removed reports whether p is Dead, or will be when its links are closed.
func (p *ClientPath) Removed() bool { return p.want == Dead }

// State is where p stands.
func (p *ClientPath) State() State { return p.state }

// ResetStats sets the statistics to zero.
func (p *ClientPath) ResetStats() { p.stats = PathStats{Latency: p.stats.Latency} }

// setState is the one place where a path's state changes.
func (p *ClientPath) setState(to State) {
	clientMay.check(p.state, to)
	from := p.state
	p.state, p.since = to, p.c.now
	if from == Connected {
		p.down = p.c.now
	}
	p.c.event(Event{Kind: EventPath, Client: p, From: from, To: to, Err: p.err})
}

// fences reports whether the server understands rdsd's own messages.
func (p *ClientPath) fences() bool { return p.flags&rtrswire.Fences != 0 }

// startAt has p connected at t.
func (p *ClientPath) startAt(t time.Duration) {
	p.at = t
	p.c.arm(t)
}

// start begins an attempt.
func (p *ClientPath) start() {
	c := p.c
	// The server closes attempts with a lower number when it sees this one, which fences the
	// requests that they still have in flight there.
	p.attempt++
	p.cons = p.cons[:0]
	p.flags, p.descs, p.noBackoff, p.slowTold = 0, nil, false, false
	p.setState(Connecting)
	p.startAt(c.now + p.patience())
	// A path that leads to another server by mistake must not begin a second session there
	// (fresh). Nor must one to a kernel that was started again while the others look alive: its
	// session has no number of its own, and would be taken for theirs (connect).
	p.creates = p.wasConnected && (c.connected == 0 || !c.kernel)
	if c.fresh() {
		p.creates, c.creator = true, p
	}
	p.dial()
}

// patience is how long the first answer may take: what a kernel may, where it may be one.
func (p *ClientPath) patience() time.Duration {
	if p.kernel {
		return p.c.cfg.Kernel.ConnectTimeout
	}
	return p.c.cfg.ConnectTimeout
}

// MayBeKernel says that nobody knows yet whether p leads to a kernel, as nobody can over RDMA before
// it has answered. It is called when p has been added.
func (p *ClientPath) MayBeKernel(now time.Duration) {
	p.kernel = true
	if p.state == Connecting && len(p.cons) == 0 {
		p.c.enter(now)
		p.startAt(p.c.now + p.patience())
		p.c.leave()
	}
}

// fresh reports whether no path has been connected before. Then one path at a time may
// create the session; later only those that were connected may, so that a path that leads
// to another server by mistake does not begin a second session there.
func (c *Client) fresh() bool {
	for _, p := range c.paths {
		if p.wasConnected {
			return false
		}
	}
	return true
}

// uncreate lets another path create the session.
func (c *Client) uncreate(p *ClientPath) {
	if c.creator == p {
		c.creator = nil
		c.arm(c.now)
	}
}

// dial makes the next connection.
func (p *ClientPath) dial() {
	r := rtrswire.ConnReq{Conn: uint16(len(p.cons)), Conns: uint16(p.c.cfg.Conns), Attempt: p.attempt,
		Path: p.uuid, Session: p.c.uuid, FirstConn: p.creates}
	b := r.Append(nil)
	rtrswire.SetFences(b)
	p.c.env.Dial(p, len(p.cons), p.attr(), b)
}

// attr is what the next connection is to be made for. Before the first answer has told how
// many chunks the server has, it is guessed.
func (p *ClientPath) attr() transport.LinkAttr {
	depth := int(p.c.chunks.Depth)
	switch {
	case len(p.cons) > 0:
		depth = int(p.chunks.Depth)
	case depth == 0:
		depth = rtrswire.Depth
	}
	if most := p.c.cfg.QueueDepth; most > 0 {
		depth = min(depth, most)
	}
	// An answer may be two messages: the end of a key, and a new key. Those that ask on
	// connection 0 are few.
	if len(p.cons) == 0 {
		return transport.LinkAttr{Sends: depth + spareOps, Recvs: spareOps}
	}
	return transport.LinkAttr{Sends: depth + spareOps, Recvs: 2*depth + spareOps}
}

// spareOps is how many messages of a connection's own may be under way in each direction:
// heartbeats, and on connection 0 the path's.
const spareOps = 64

// RecvBytes is how long a message on connection conn may be. It is known when Dialed has
// returned.
func (p *ClientPath) RecvBytes(conn int) int {
	if conn > 0 {
		return rtrswire.RKeyRspLen
	}
	return min(rtrswire.InfoRspLen+int(p.chunks.Depth)*rtrswire.DescLen, transport.MaxSend)
}

// Dialed reports that connection conn is made and that the server answered with rsp.
func (p *ClientPath) Dialed(now time.Duration, conn int, rsp []byte) {
	// This is a report of an earlier attempt, or of a connection that is not being made.
	if p.state != Connecting || conn != len(p.cons) || conn >= p.c.cfg.Conns {
		return
	}
	p.c.enter(now)
	defer p.c.leave()
	r, err := rtrswire.ParseConnRsp(rsp)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%w: it let connection %d in with errno %d", ErrProtocol, conn, r.Errno())
	}
	if err == nil && conn == 0 {
		// All connections of a path are to the same chunks: the answer to connection 0
		// counts.
		p.chunks, err = r.Chunks()
		p.flags = r.Flags
		// Requests are laid out without asking again whether their headers fit.
		if err == nil && p.chunks.MaxHdr < minHdr {
			err = fmt.Errorf("%w: its chunks have %d bytes for headers, a request may need %d", ErrProtocol, p.chunks.MaxHdr, minHdr)
		}
	}
	if err != nil {
		p.violation(err)
		return
	}
	p.cons = append(p.cons, clientCon{})
	// A kernel's server takes its time for each of them; one that is none has to hurry from here on.
	switch {
	case !p.fences():
		p.startAt(p.c.now + p.c.cfg.Kernel.ConnectTimeout)
	case p.kernel && conn == 0:
		p.startAt(p.c.now + p.c.cfg.ConnectTimeout)
	}
	// One after the other: the server makes the path with connection 0, and refuses others
	// without it.
	if len(p.cons) < p.c.cfg.Conns {
		p.dial()
		return
	}
	b, err := rtrswire.AppendInfoReq(nil, p.c.cfg.Name)
	if err != nil {
		panic(err) // the configuration was checked
	}
	p.post(0, &transport.Op{Kind: transport.OpSend, Data: b})
}

// Refused reports that connection conn could not be made. rsp is the server's answer, nil
// if there was none.
func (p *ClientPath) Refused(now time.Duration, conn int, rsp []byte, err error) {
	if p.state != Connecting || conn != len(p.cons) {
		return
	}
	p.c.enter(now)
	defer p.c.leave()
	// A refusal with a reason, and not a link that could not be made: some reasons end the
	// session.
	if r, perr := rtrswire.ParseConnRsp(rsp); perr == nil && r.Errno() != 0 {
		p.refused(r.Errno())
		return
	}
	if err == nil {
		err = rdserr.ErrReset
	}
	p.lose(err)
}

// Lost reports that connection conn ended by itself.
func (p *ClientPath) Lost(now time.Duration, conn int, err error) {
	if p.state != Connecting && p.state != Connected {
		return
	}
	p.c.enter(now)
	p.lose(err)
	p.c.leave()
}

// retire takes p, which has no link, to Closed or Dead.
func (p *ClientPath) retire(to State) {
	c := p.c
	p.setState(to)
	// The others may wait for it to create the session.
	c.uncreate(p)
	if to != Dead {
		return
	}
	// It will not be connected again. Where nothing else would end its epochs, they have a time
	// from now on.
	for _, e := range c.epochs {
		if e.from == p && !e.able {
			c.arm(e.lapses())
		}
	}
	for i, q := range c.paths {
		if q == p {
			c.paths = append(c.paths[:i:i], c.paths[i+1:]...)
		}
	}
}

// timeout gives p up because a request passed its limit.
func (p *ClientPath) timeout() {
	p.overdue = false
	if p.state == Connected {
		p.c.stats.Timeouts++
		p.c.event(Event{Kind: EventTimeout, Client: p})
		p.lose(ErrTimeout)
	}
}

// violation gives p up because of err.
func (p *ClientPath) violation(err error) error {
	p.c.event(Event{Kind: EventViolation, Client: p, Err: err})
	p.lose(err)
	return err
}

// lose gives p up, which is Connecting or Connected. err is the reason, nil if the
// administrator wants it. Requests in flight stay until Gone, because their memory may
// still be written and read.
func (p *ClientPath) lose(err error) {
	c := p.c
	was := p.state
	if err != nil || was == Connecting {
		p.err, p.errAt = err, c.now
	}
	p.setState(Closing)
	c.env.Hang(p)
	// Nothing was sent on it: there is no epoch to end.
	if was == Connecting {
		p.failures++
		p.stats.ReconnectsFailed++
		c.uncreate(p)
		return
	}
	// Fences that were sent here may not have arrived: they are sent on another path.
	for _, e := range c.epochs {
		if e.via == p {
			e.via = nil
		}
	}
	if c.connected--; c.connected == 0 {
		c.down()
	} else {
		c.fence()
	}
}

// Gone reports that the links are closed, as ClientEnv.Hang asked.
func (p *ClientPath) Gone(now time.Duration) {
	if p.state != Closing {
		return
	}
	c := p.c
	c.enter(now)
	defer c.leave()
	// Only now: until its links were closed, memory of requests could be read and written.
	p.makeEpoch()
	c.lapse() // arms its time
	switch {
	case p.want != Reconnecting:
		p.retire(p.want)
	case c.exhausted(p.failures):
		p.retire(Closed)
	default:
		p.setState(Reconnecting)
		// Full jitter: the paths of all clients of a server that came back do not come at one
		// time.
		bound := c.cfg.ReconnectMin << min(p.failures, 20)
		if bound <= 0 || bound > c.cfg.ReconnectMax {
			bound = c.cfg.ReconnectMax
		}
		t := c.now
		if !p.noBackoff {
			t += time.Duration(c.rnd.Int63n(int64(bound) + 1))
		}
		p.startAt(t)
	}
	// makeEpoch has made an epoch of the requests in flight; another path may ask for its
	// end.
	c.fence()
}

// connect makes p Connected when the INFO_RSP has come. p is a path of session generation
// g, and descs are the keys of its chunks.
func (p *ClientPath) connect(g uint32, descs []rtrswire.Desc) error {
	c := p.c
	same := g == c.generation
	switch {
	// A kernel's generation is always 0: there only other chunks show that it is a new
	// session, and only when no path is connected to the old one.
	case c.chunks.Depth == 0 || !same || g == 0 && c.connected == 0 && p.chunks != c.chunks:
		c.newSession(p, g)
	case p.chunks != c.chunks:
		return fmt.Errorf("%w: %d chunks of %d bytes on this path, %d of %d on others", ErrProtocol, p.chunks.Depth, p.chunks.Size(), c.chunks.Depth, c.chunks.Size())
	}
	p.descs = c.chunks.Spread(p.descs[:0], descs)
	p.err, p.failures = nil, 0
	c.kernel = !p.fences()
	p.kernel = c.kernel
	if p.wasConnected {
		p.stats.Reconnects++
	}
	p.wasConnected = true
	p.setState(Connected)
	p.beat.start(c.now, c.cfg.Kernel.pulse(!p.fences(), pulse{c.cfg.HeartbeatEvery, c.cfg.MissedLimit}))
	c.arm(p.beat.next)
	for _, e := range c.epochs {
		// A server connects a path again only when its older attempts have ended: that is a
		// fence.
		if e.path == p.uuid {
			e.fenced = true
		}
	}
	if c.connected++; c.connected == 1 {
		c.up()
	}
	c.fence()
	return nil
}

// newSession takes over session generation g of the server, with its new chunks. Paths that
// are connected belong to the old session, which has ended there.
func (c *Client) newSession(p *ClientPath, g uint32) {
	// These are paths to the old session: their requests in flight end with it, and their
	// permits are void.
	for i := len(c.paths) - 1; i >= 0; i-- {
		if q := c.paths[i]; q.state == Connected {
			q.lose(rdserr.With(rdserr.ErrReset, "the server has a new session"))
		}
	}
	c.generation, c.chunks = g, p.chunks
	c.session++
	c.slots = make([]*Req, c.chunks.Depth)
	c.free = make([]uint32, 0, c.chunks.Depth)
	// The last is used first: permits from 0 on, so that few chunks are touched.
	for i := range c.Depth() {
		c.free = append(c.free, uint32(c.Depth()-1-i))
	}
}

// up tells the user that the first path is connected.
func (c *Client) up() {
	c.stats.Ups++
	c.resumed = false
	c.creator = nil
	// They may join now, or will find the server back too: no need to sit out a backoff, but
	// not all in the same instant.
	for _, p := range c.paths {
		if p.state == Reconnecting {
			t := c.now
			if p.wasConnected {
				t += time.Duration(c.rnd.Int63n(int64(c.cfg.ReconnectMin) + 1))
			}
			p.startAt(min(p.at, t))
		}
	}
	c.event(Event{Kind: EventUp, Generation: c.generation})
	c.env.Up()
}

// down tells the user that the last path is lost. Requests with Admin were about a session
// that may have ended: they fail, and the user asks again after Up.
func (c *Client) down() {
	c.stats.Downs++
	c.lostAt, c.resumed = c.now, false
	if c.cfg.OnLoss == Error {
		c.arm(c.now + c.cfg.LossTimeout)
	}
	c.event(Event{Kind: EventDown})
	// Down may submit new requests, which are not about the session that is lost.
	before := c.all.n
	c.env.Down()
	c.each(before, func(r *Req) {
		if r.Admin {
			c.giveUp(r, ErrNoPath)
		}
	})
}

// refused deals with a server that does not accept this path, or that has given up this
// session.
func (p *ClientPath) refused(errno uint16) {
	c := p.c
	err := error(refusal(errno))
	p.c.event(Event{Kind: EventRefused, Client: p, Err: err})
	p.lose(err)
	// Another client of this name has taken the session over. To come back would take it back,
	// and so on for ever.
	if errno == errnoReplaced {
		c.event(Event{Kind: EventReplaced, Client: p, Err: ErrReplaced})
		c.end(ErrReplaced, disconnect)
	}
}
