//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// ringLink is one region with the control connection that it belongs to.
//
// The mapping stays as long as there may be a reader of it: the sending side, the receiving
// side until everything borrowed is back, waiting calls, reserved slots, and as long as somebody
// reads it or the doorbell. Each holds a reference, taken under a lock under which the link is known to be in use.
//
// The descriptors go before, when nobody is left but reserved slots and what is borrowed, which may stay for as long
// as the program likes: of each life of the daemon it would keep some.
type ringLink struct {
	r      *rings
	conn   *shm.Conn
	region *shm.Region
	send   *shm.Sender   // guarded by rings.txMu
	recv   *shm.Receiver // guarded by rings.rxMu
	local  netip.AddrPort
	max    int
	least  bool          // bound with leastLeft
	refs   atomic.Int32  // on the mapping
	uses   atomic.Int32  // of these, by who uses the descriptors
	ring   int           // the daemon's doorbell; closed with the last use
	bell   doorbell      // ours
	down   chan struct{} // closed when read has ended
	stop   func() bool   // ends the watch over the socket's context
	fault  atomic.Pointer[error]

	// Pairs (ringpair.go).
	offers map[uint64]*pairOffer       // of read
	out    map[netip.AddrPort]*pairOut // guarded by rings.txMu
	in     *pairSet                    // guarded by rings.rxMu; nil: none
	ending int                         // guarded by rings.rxMu; of in, closed and not let go of
	order  shm.PairOrder               // guarded by rings.rxMu
	desc   shm.RecvDesc                // guarded by rings.rxMu; what nextLocked found in the ring

	// Guarded by Socket.mu:
	ctl     ctlQueue
	writing bool // a goroutine writes ctl
	closing bool // it is to shut the connection when that is done
}

// connect binds over the ring control socket. ctx bounds only this.
func (r *rings) connect(ctx context.Context) (link, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx, nil)
	}
	conn, err := shm.Dial(ctx, r.path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctxError(ctx, nil)
		}
		return nil, noRings{r.dialError(err)}
	}
	// The handshake is a few blocking reads and writes: a deadline in the past ends them
	// with ctx.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	l, err := r.handshake(conn)
	// ctx ended when all was done; the deadline it has set makes the link useless.
	if !stop() && err == nil {
		l.discard()
		err = ctxError(ctx, nil)
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, ctxError(ctx, nil)
		}
		return nil, err
	}
	l.stop = context.AfterFunc(r.ctx, l.abort)
	return l, nil
}

// discard lets go of the memory as well, which the daemon charges while it is mapped.
func (l *ringLink) discard() {
	if l.stop != nil {
		l.stop()
	}
	l.abort()
	l.unmap()
}

func (r *rings) dialError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return rdserr.With(rdserr.ErrPerm, "no permission for %s", r.path)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return rdserr.With(rdserr.ErrShutdown, "no daemon with rings at %s: %v", r.path, err)
	}
	return rdserr.With(rdserr.ErrShutdown, "%v", err)
}

func (r *rings) handshake(conn *shm.Conn) (*ringLink, error) {
	bind := &rdsdv1.Bind{}
	bind.SetLocal(endpointToProto(r.LocalAddr()))
	bind.SetSendBufferBytes(uint64(r.cfg.sendBuffer))
	buffer, least := r.recvBuffer()
	bind.SetRecvBufferBytes(buffer)
	bind.SetLabel(r.cfg.label)
	wish := &rdsdv1.RingWish{}
	wish.SetVersion(shm.Version)
	wish.SetPairs(true)
	wish.SetOneDoorbell(true)
	bind.SetRing(wish)
	m := &rdsdv1.ClientMessage{}
	m.SetBind(bind)
	// First the region, which the client maps, then the port: a bind that cannot be used
	// leaves nothing bound.
	answer, fds, err := r.ask(conn, m, (*rdsdv1.ServerMessage).HasRegion)
	if err != nil {
		return nil, err
	}
	l, err := r.granted(conn, answer.GetRegion(), fds)
	if err != nil {
		closeFDs(fds)
		hangUp(conn)
		if errors.Is(err, rdserr.ErrTooMany) { // nothing that is not there: it is when others are closed
			return nil, err
		}
		return nil, noRings{err}
	}
	// From this answer on the region is sealed: it cannot be mapped for writing any more.
	m = &rdsdv1.ClientMessage{}
	m.SetMapped(&rdsdv1.RingMapped{})
	if answer, fds, err = r.ask(conn, m, (*rdsdv1.ServerMessage).HasBound); err != nil {
		l.unmap()
		return nil, err
	}
	closeFDs(fds) // there are none
	if err := l.begin(answer.GetBound()); err != nil {
		l.unmap()
		hangUp(conn)
		return nil, noRings{err}
	}
	l.least = least
	return l, nil
}

// ask sends a message of the handshake and returns the answer, which must be the
// wanted one, with its descriptors.
func (r *rings) ask(conn *shm.Conn, m proto.Message, wanted func(*rdsdv1.ServerMessage) bool) (*rdsdv1.ServerMessage, []int, error) {
	out, err := proto.Marshal(m)
	if err != nil {
		return nil, nil, err
	}
	// A daemon that has closed may have said why before.
	if conn.WriteMessage(out) != nil {
		_ = conn.CloseWrite()
	}
	in, fds, err := conn.ReadMessage()
	if err != nil {
		return nil, nil, rdserr.With(rdserr.ErrShutdown, "the daemon at %s does not answer: %v", r.path, err)
	}
	answer := &rdsdv1.ServerMessage{}
	err = proto.Unmarshal(in, answer)
	switch {
	case err != nil:
		err = rdserr.With(rdserr.ErrProtocol, "the daemon's answer to Bind: %v", err)
	case answer.HasClosing():
		err = refusal(answer.GetClosing())
	// An answer of another kind may have brought descriptors: they are closed below.
	case !wanted(answer):
		err = rdserr.With(rdserr.ErrProtocol, "the daemon answers Bind with %v", answer.WhichBody())
	default:
		return answer, fds, nil
	}
	closeFDs(fds)
	return nil, nil, err
}

// refusal is why Bind failed. Some of it concerns rings alone.
func refusal(c *rdsdv1.Closing) error {
	err := errnoError(c.GetErrno(), c.GetMessage())
	switch syscall.Errno(c.GetErrno()) {
	case 0:
		return rdserr.ErrShutdown
	case syscall.EPROTONOSUPPORT, syscall.ENOSYS:
		return noRings{rdserr.With(rdserr.ErrNotSupported, "the daemon has no rings of version %d: %s", shm.Version, c.GetMessage())}
	case syscall.ENOMEM:
		return noRings{err}
	}
	return err
}

// granted makes a link from the region and its descriptors. With an error, the descriptors
// are still the caller's.
func (r *rings) granted(conn *shm.Conn, grant *rdsdv1.RingGrant, fds []int) (*ringLink, error) {
	if grant.GetVersion() == shm.Version && len(fds) < 4 && conn.Short() {
		return nil, rdserr.With(rdserr.ErrTooMany, "of the 4 descriptors of rings %d could be received: this process has too many open (ulimit -n)", len(fds))
	}
	if grant.GetVersion() != shm.Version || len(fds) != 4 {
		return nil, rdserr.With(rdserr.ErrNotSupported, "the daemon granted rings of version %d with %d descriptors; version %d and 4 were wanted",
			grant.GetVersion(), len(fds), shm.Version)
	}
	region, err := shm.Open(fds[0], fds[1], grant.GetRegionBytes())
	if err != nil {
		return nil, err
	}
	l := &ringLink{r: r, conn: conn, region: region, ring: fds[2], down: make(chan struct{})}
	if err := l.bell.open(fds[3]); err != nil {
		region.Close()
		return nil, err
	}
	closeFDs(fds[:2])
	return l, nil
}

// begin reads the address that the socket is bound to; the link may be used from then on.
func (l *ringLink) begin(bound *rdsdv1.Bound) error {
	if err := l.region.ReadHeader(); err != nil {
		return err
	}
	l.send, l.recv = shm.NewSender(l.region, l.ring), shm.NewReceiver(l.region, l.ring)
	l.local = endpointFromProto(bound.GetLocal())
	l.max = int(min(bound.GetMaxDatagramBytes(), uint64(l.region.MaxDatagram)))
	l.refs.Store(4) // the sending side, the receiving side, read, keep
	l.uses.Store(4)
	return nil
}

// hangUp ends a connection and waits a moment for the daemon to have let go of
// the port.
func hangUp(conn *shm.Conn) {
	_ = conn.CloseWrite()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	for {
		_, fds, err := conn.ReadMessage()
		closeFDs(fds)
		if err != nil {
			return
		}
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (l *ringLink) bound() (netip.AddrPort, int) { return l.local, l.max }

func (l *ringLink) gone() <-chan struct{} { return l.down }

// abort may be called by any goroutine, while others read and write.
func (l *ringLink) abort() {
	l.hangUp()
	l.bell.stopListening()
}

func (l *ringLink) endLocked() {
	l.closing = true
	l.writeLocked()
}

// hangUp closes the socket; read drops a message received in part.
func (l *ringLink) hangUp() { l.conn.UnixConn.Close() }

// fail ends the link because of wrong values in the region.
func (l *ringLink) fail(err error) {
	l.fault.CompareAndSwap(nil, &err)
	l.hangUp()
}

func (l *ringLink) unref() {
	if l.refs.Add(-1) == 0 {
		l.unmap()
	}
}

// use adds a reference of somebody who uses the descriptors; unuse ends it.
func (l *ringLink) use() {
	l.refs.Add(1)
	l.uses.Add(1)
}

func (l *ringLink) unuse() {
	l.endUse()
	l.unref()
}

// endUse is unuse of somebody who keeps the reference.
func (l *ringLink) endUse() {
	if l.uses.Add(-1) == 0 {
		unix.Close(l.ring)
		l.ring = -1
		l.bell.quiet()
	}
}

func (l *ringLink) unmap() {
	l.region.Close() // first: of a doorbell that is closed the daemon concludes that nobody reads the region
	if l.ring >= 0 {
		unix.Close(l.ring)
	}
	l.bell.close()
}

// read takes messages until the connection ends and says why it did.
func (l *ringLink) read() error {
	defer l.unuse()
	defer close(l.down)
	defer l.conn.Close()
	defer l.abort()
	defer l.stop()
	defer l.dropOffers()
	var closing error
	for {
		in, fds, err := l.conn.ReadMessage()
		if err != nil {
			closeFDs(fds)
			return l.why(closing, err)
		}
		m := &rdsdv1.ServerMessage{}
		err = proto.Unmarshal(in, m)
		// Only an offer of a pair brings descriptors: what it maps stays when they are closed.
		if err == nil && m.WhichBody() == rdsdv1.ServerMessage_Pair_case {
			l.pairStep(m.GetPair(), fds)
		}
		closeFDs(fds)
		if err != nil {
			return rdserr.With(rdserr.ErrProtocol, "message of the daemon: %v", err)
		}
		switch m.WhichBody() {
		case rdsdv1.ServerMessage_Pair_case:
		case rdsdv1.ServerMessage_Closing_case:
			closing = closingError(m.GetClosing())
		default:
			l.r.answered(m)
		}
	}
}

// why finds the reason of the end of the connection.
func (l *ringLink) why(closing, err error) error {
	if fault := l.fault.Load(); fault != nil {
		return *fault
	}
	if closing != nil {
		return closing
	}
	if n := l.region.Closed().Load(); n != 0 {
		c := &rdsdv1.Closing{}
		c.SetErrno(int32(n & 0xfff))
		return closingError(c)
	}
	return rdserr.With(rdserr.ErrShutdown, "the daemon ended the connection: %v", err)
}

// writeLocked starts a goroutine that writes queued messages. Control messages are rare,
// and a daemon that does not read must not hold up the caller past its context.
func (l *ringLink) writeLocked() {
	if l.writing || l.ctl.len() == 0 && !l.closing {
		return
	}
	l.writing = true
	go l.write() // ends when the queue is empty, or the connection is closed
}

func (l *ringLink) write() {
	mu := &l.r.mu
	mu.Lock()
	for l.ctl.len() > 0 {
		m := l.ctl.pop()
		mu.Unlock()
		out, err := proto.Marshal(m)
		if err == nil {
			err = l.conn.WriteMessage(out)
		}
		if err != nil { // the daemon ends the connection then, and the reader sees why
			_ = l.conn.CloseWrite()
		}
		mu.Lock()
	}
	if l.closing {
		_ = l.conn.CloseWrite() // the daemon answers by ending the connection
	}
	l.writing = l.closing
	mu.Unlock()
}

// keep waits for the daemon to ring, for all parked calls.
func (l *ringLink) keep() {
	defer l.unuse() // a doorbell that is closed under it may be another file by then
	for rings := true; rings; {
		rings = l.bell.heard()
		l.r.waiters.wake(allBits)
	}
}
