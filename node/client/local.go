package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

const (
	// firstMessage is how long a client may take to say what it wants.
	firstMessage = 10 * time.Second
	// piecesTime is how long it may take to send the rest of a message.
	piecesTime = 10 * time.Second
	// localConnBytes is what such a connection costs before it has a socket, or
	// beside one with rings.
	localConnBytes = 16 << 10
)

// Serve takes connections of l, the control socket, until it is closed, which Stop does.
func (f *Front) Serve(l net.Listener) error {
	f.mu.Lock()
	f.listener = l
	stopped := f.conns == nil
	f.mu.Unlock()
	if stopped {
		l.Close()
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return nil // it is closed: nothing else ends an accept.Listener
		}
		id, err := access.Identify(c)
		if err == nil {
			err = f.Accept(c.(*net.UnixConn), id)
		}
		if err != nil {
			f.refuse(c, id, err)
		}
	}
}

// Accept serves a connection whose other end is id to its end. An error leaves c as it is.
func (f *Front) Accept(c *net.UnixConn, id config.Identity) error {
	account, err := f.deps.Clients.Add(id, localConnBytes)
	if err != nil {
		return err
	}
	f.wg.Go(func() { // ends with the connection, which Stop closes
		defer f.deps.Guard.Recover(guard.Socket, func(error) { c.Close() })
		f.handle(shm.NewConn(c, 0), id, account)
	})
	return nil
}

// maxRefusals bounds the connections that are being told why they are not served.
const maxRefusals = 4

// refuse ends a connection that may not be. A client that is slow to listen holds up
// nobody: with too many of those the next are closed without a word.
func (f *Front) refuse(c net.Conn, id config.Identity, err error) {
	if f.refusals.Add(1) > maxRefusals {
		f.refusals.Add(-1)
		f.closers.Close(id.UID, c)
		return
	}
	f.wg.Go(func() { // ends after refusePatience and goodbye at the latest
		defer f.refusals.Add(-1)
		defer f.deps.Guard.Recover(guard.Socket, nil)
		RefusePacket(c, err)
		f.closers.Close(id.UID, c)
	})
}

// Closing is how many refused connections wait to be closed.
func (f *Front) Closing() int { return f.closers.Waiting() }

// packetPatience is how long a client that is refused may take to say its first words.
const packetPatience = 50 * time.Millisecond

// RefusePacket tells a client of the control socket why its connection ends. What the
// client has said is read before: closing over it would take our word with it.
func RefusePacket(c net.Conn, err error) {
	if u, ok := c.(*net.UnixConn); ok {
		conn := shm.NewConn(u, 0)
		conn.SetReadDeadline(time.Now().Add(packetPatience))
		conn.ReadMessage()
		(&packetStream{conn: conn}).sayClosing(base.NoDescriptors(err))
	}
}

// maxClosing bounds the threads that refused connections can hold, which count
// for nobody, and those that seals can. Linux refuses the descriptors that it takes
// for the former (6.16).
const maxClosing = 256

// handle serves one connection to its end, or until a reactor has taken it over.
func (f *Front) handle(c *shm.Conn, id config.Identity, account *quota.Account) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.mu.Lock()
	if f.conns == nil {
		f.mu.Unlock()
		f.drop(&packetStream{conn: c}, id, account)
		return
	}
	f.conns[c] = struct{}{}
	f.mu.Unlock()
	p := &packetStream{ctx: ctx, conn: c, account: account}
	c.Charge(shm.MaxRequest, piecesTime, p.charge)
	c.Toll.User = f.deps.Tolls.Of(id.UID)
	c.Costly = func(why error) { f.deps.Count.CostlyClient(f.deps.Log, id, why) }
	var taken bool
	var err error
	if e := f.deps.Guard.Do(guard.Socket, func() {
		guard.Point("client")
		taken, err = f.open(p, id)
	}); e != nil {
		taken, err = false, e
	}
	if err != nil && !errors.Is(err, errGone) {
		p.sayClosing(err)
	}
	f.mu.Lock()
	delete(f.conns, c)
	f.mu.Unlock()
	if !taken {
		f.drop(p, id, account)
	}
}

// drop closes a connection that nobody serves.
func (f *Front) drop(p *packetStream, id config.Identity, account *quota.Account) {
	go func() { // ends with the close, which may take as long as whoever passed us a descriptor likes
		defer f.deps.Guard.Recover(guard.Socket, nil)
		p.conn.Close()
		p.parting.Wait()
		f.deps.Clients.Remove(id, account, localConnBytes)
	}()
}

// open reads the first message and serves the socket it asks for. taken: a
// reactor has the connection from now on.
func (f *Front) open(p *packetStream, id config.Identity) (taken bool, err error) {
	if !f.deps.Limiter.Allow(id.UID, time.Now()) {
		return false, f.deps.Limiter.Refusal(id.UID, f.deps.Count)
	}
	in := &inMsg{}
	p.conn.SetReadDeadline(time.Now().Add(firstMessage))
	if err := p.RecvMsg(in); err != nil {
		return false, streamEnd(err)
	}
	p.conn.SetReadDeadline(time.Time{})
	p.bound = true
	if !in.isBatch && in.msg.WhichBody() == rdsdv1.ClientMessage_Bind_case && in.msg.GetBind().HasRing() {
		if err := f.banned(id.UID, time.Now()); err != nil {
			return false, err
		}
		return openRing(f, p, id, in.msg.GetBind())
	}
	p.conn.Charge(shm.MaxMessage, piecesTime, p.charge) // it holds batches of datagrams
	return false, f.serveSocket(p, id, p, in)
}

// A client that was expensive to wake is ended when that has been measured, on a
// reactor that others need. So that it is not at once the next one, its user gets no
// rings for banMin, and for twice as long each time it happens again within banKnown
// of the end of that.
type ringBan struct {
	until time.Time
	time  time.Duration
}

const (
	banMin   = time.Second
	banMax   = time.Minute
	banKnown = time.Minute
	maxBans  = 1024 // users; beyond them nobody is banned
)

// ban refuses rings to a user for a while, for what one of them was found to cost.
func (f *Front) ban(id config.Identity, now time.Time, why error) {
	f.mu.Lock()
	for uid, b := range f.bans {
		if now.After(b.until.Add(banKnown)) {
			delete(f.bans, uid)
		}
	}
	if f.bans == nil {
		f.bans = map[uint32]ringBan{}
	}
	b := f.bans[id.UID]
	if b.time = min(max(2*b.time, banMin), banMax); len(f.bans) < maxBans {
		b.until = now.Add(b.time)
		f.bans[id.UID] = b
	}
	f.mu.Unlock()
	f.deps.Count.CostlyClient(f.deps.Log, id, why)
}

func (f *Front) banned(uid uint32, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := f.bans[uid].until.Sub(now)
	if left <= 0 {
		return nil
	}
	return rdserr.With(rdserr.ErrRateLimited, "uid %d gets no rings for %v: it took the daemon too long to wake a client of its; bind without rings, or later", uid, left.Round(time.Millisecond))
}

// Memory tells how many sockets have rings, and what their regions take.
func (f *Front) Memory() (n int, bytes uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.rings { // until it is closed, and that takes f.mu, its region is there
		bytes += r.End.Used()
	}
	return len(f.rings), bytes
}

// ForgetPages lets go of all pages of regions that the daemon has touched.
func (f *Front) ForgetPages() {
	for _, r := range f.ringSocks() {
		r.reg.Forget()
	}
}

// Stop closes what is still open and waits for its end.
func (f *Front) Stop() {
	f.mu.Lock()
	l := f.listener
	f.mu.Unlock()
	if l != nil {
		l.Close() // without the lock: who accepts may be about to take it
	}
	f.mu.Lock()
	for c := range f.conns { // whoever reads there closes it
		_ = c.CloseRead()
		_ = c.CloseWrite()
	}
	f.conns = nil
	for r := range f.rings {
		r.react.DoFor(r, func() { r.end(base.ErrDraining) })
	}
	f.mu.Unlock()
	f.wg.Wait()
	f.pages.stop()
	f.pairs.stop()
}

// errGone says that the client closed its end, or that its connection broke.
var errGone = errors.New("the client is gone")

// packetStream carries the messages of Datagrams.Open over a control
// connection: a stream.
type packetStream struct {
	ctx     context.Context
	conn    *shm.Conn
	account *quota.Account // of the client's user
	bound   bool           // something was received
	parting sync.WaitGroup // what else of its is being closed, where that may take long

	mu      sync.Mutex  // held for a whole message by whoever writes it: nothing may come between its pieces
	greeted bool        // the first message has been sent; guarded by mu
	over    bool        // nothing is sent any more: Closing has been, or a message in part; guarded by mu
	leaving atomic.Bool // sayClosing has the next word
}

var _ Stream = (*packetStream)(nil)

// charge is asked by the connection before it takes memory for a message in pieces.
func (p *packetStream) charge(bytes int) error {
	if bytes < 0 {
		p.account.Give(quota.Control, int64(-bytes))
		return nil
	}
	return p.account.Take(quota.Control, int64(bytes))
}

// SendMsg writes one ServerMessage.
func (p *packetStream) SendMsg(m any) error { return p.send(m) }

// send writes one message, with descriptors.
func (p *packetStream) send(m any, fds ...int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaving.Load() {
		return errGone
	}
	return p.sendLocked(m, fds...)
}

// sendLocked is send for who holds mu.
func (p *packetStream) sendLocked(m any, fds ...int) error {
	if p.over {
		return errGone
	}
	data, err := datagramCodec{}.Marshal(m)
	if err != nil {
		return err
	}
	defer data.Free()
	p.over = isClosing(m)
	b := data.MaterializeToBuffer(msgpool.Pool)
	defer b.Free()
	// Until the client has shown that it reads, nobody but this goroutine would end a
	// write that waits for it.
	if !p.greeted {
		p.conn.SetWriteDeadline(time.Now().Add(greetPatience))
	}
	if err := p.conn.WriteMessage(b.ReadOnlyData(), fds...); err != nil {
		p.over = true
		return errGone
	}
	if !p.greeted {
		p.greeted = true
		p.conn.SetWriteDeadline(time.Time{})
	}
	return nil
}

// greetPatience is how long the first message may wait for the client to read.
const greetPatience = 2 * time.Second

// RecvMsg reads one ClientMessage.
func (p *packetStream) RecvMsg(m any) error {
	b, _, err := p.conn.ReadMessage()
	defer p.conn.Done() // it is copied, and this may be the last one that is read
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return io.EOF
	case p.bound && isTimeout(err):
		return rdserr.With(rdserr.ErrTimeout, "the rest of a message did not come in %v", piecesTime)
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return rdserr.With(rdserr.ErrTimeout, "no bind within %v of the connection", firstMessage)
	case err != nil:
		return err
	}
	return unmarshalCopy(b, m)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// unmarshalCopy decodes a message out of memory that is used again.
func unmarshalCopy(b []byte, m any) error {
	data := msgpool.Pool.Get(len(b))
	copy(*data, b)
	if err := (datagramCodec{}).Unmarshal(mem.BufferSlice{mem.NewBuffer(data, msgpool.Pool)}, m); err != nil {
		return rdserr.With(rdserr.ErrInvalid, "a message that is no ClientMessage of rdsd.v1: %v", err)
	}
	return nil
}

// sayClosing tells why the connection ends, unless that was told. Somebody may be in the middle of a message: the
// client has as long to take the rest of that as it has to take this, and nobody begins another.
func (p *packetStream) sayClosing(err error) {
	p.leaving.Store(true)
	p.conn.SetWriteDeadline(time.Now().Add(goodbye))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn.SetWriteDeadline(time.Now().Add(goodbye))
	p.greeted = true
	_ = p.sendLocked(closingPB(err)) // it is the last word either way
}

// Context is the connection's.
func (p *packetStream) Context() context.Context { return p.ctx }

func isClosing(m any) bool {
	s, ok := m.(*rdsdv1.ServerMessage)
	return ok && s.WhichBody() == rdsdv1.ServerMessage_Closing_case
}
