package tcp

import (
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
)

// OneSided is a one-sided link over one TCP connection: tagged frames. As with Link, its
// reactor's thread reads, goes on writing a block that met a full socket buffer, and alone
// closes the descriptor.
//
// A thread whose Flush finds no other writing writes all posted operations, those that
// others post meanwhile included. mu is not held during that.
type OneSided struct {
	socket

	mu      sync.Mutex                // guards the fields below; only epoll_ctl is called with it held
	h       transport.OneSidedHandler // set by Start
	domain  *transport.Regions        // does not change
	ended   bool                      // Closed has been, or is about to be, called
	out     transport.TagQueue
	writing bool  // a thread writes the first block of out
	full    bool  // the socket took no more: the thread goes on when it does
	dead    bool  // the link has failed and is about to end
	err     error // why it ended before it was started

	resting bool // nothing is read until nap ends; set by the thread

	sent transport.SentCount // of operations posted and written; atomic, but for what the thread owns
	tell func()              // tells the handler of operations that were written, on the thread; does not change

	// Owned by the reactor's thread.
	in   transport.TagReader
	nap  *reactor.Timer // nil before the first pause
	naps int            // one after the other
}

var (
	_ transport.OneSided = (*OneSided)(nil)
	_ reactor.Eager      = (*OneSided)(nil)
)

const (
	flushBytes = 1 << 20 // bytes that one call of Flush writes, about: the reactor's thread writes the others
	// handBytes is how much is read, about, before the handler's End, in which it answers:
	// with a turn's 256 KiB the peer of large writes waits half the time, with less than a
	// read of small ones they are answered in more calls.
	handBytes = 64 << 10
	// napTime is how long a link is not read when its domain defers reads, maxNaps how many
	// times in succession: a peer that is not read for long would be given up.
	napTime = 5 * time.Millisecond
	maxNaps = 60
)

// firstSeq is the number of a link's first frame behind the handshake's.
const firstSeq = 1

// newOneSided takes the connection over; nc is closed in any case.
func newOneSided(d *Domain, nc *net.TCPConn) (*OneSided, error) {
	l := &OneSided{domain: d.Regions, out: transport.NewTagQueue(firstSeq)}
	l.in, l.tell = transport.NewTagReader(d.Regions, firstSeq, &l.sent), l.tellSent
	if err := l.open(d.loop, nc, 0); err != nil {
		return nil, err
	}
	return l, nil
}

// Start begins to read. A send of more than recvBytes bytes ends the link.
func (l *OneSided) Start(h transport.OneSidedHandler, recvBytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h != nil {
		return
	}
	l.h = h
	if l.ended { // before it was started
		err := l.err
		l.loop.r.DoFor(l, func() { h.Closed(err) })
		return
	}
	l.in.Start(h)
	l.in.Expect(recvBytes)
	if err := l.wait(); err != nil {
		l.fail(err)
	}
}

// wait asks the reactor for the events that the link waits for. mu is held.
func (l *OneSided) wait() error {
	var want uint32
	if l.h != nil && !l.ended {
		if !l.resting {
			want = unix.EPOLLIN
		}
		if l.full {
			want |= unix.EPOLLOUT
		}
	}
	return l.watch(want, l)
}

// Post queues op.
func (l *OneSided) Post(op *transport.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead || l.ended {
		return
	}
	if err := l.out.Post(op); err != nil {
		l.fail(err)
		return
	}
	l.sent.Posted()
}

// Grant implements transport.OneSided; the key is the domain's.
func (l *OneSided) Grant(p []byte, at uint64) (key uint32, addr uint64) { return l.domain.Grant(p, at) }

// Flush writes posted operations, unless another thread does or the socket is full.
func (l *OneSided) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The thread that is writing finds operations posted meanwhile; after a full buffer the
	// reactor's thread goes on.
	if l.writing || l.full {
		return
	}
	l.writing = true
	for bytes := 0; !l.dead && !l.ended && !l.full; {
		b := l.out.Next()
		if b == nil {
			break
		}
		// Others post while this writes: a caller is not to become everybody's writer. The
		// reactor goes on.
		if bytes > flushBytes {
			l.waitFull()
			break
		}
		// A large writev takes its time, and others want to post meanwhile.
		l.mu.Unlock()
		n, err := l.write(b)
		l.mu.Lock()
		bytes += n
		switch {
		case err != nil && err != unix.EAGAIN:
			l.fail(err)
		case b.Wrote(n):
			ops := b.Ops()
			l.out.Done()
			if l.sent.Wrote(ops) {
				l.loop.r.DoFor(l, l.tell)
			}
		default:
			l.waitFull()
		}
	}
	l.writing = false
	// The link ended while this was writing, and left the blocks to it.
	if l.ended {
		l.out.Drop()
	}
}

// waitFull leaves the remaining blocks to the reactor's thread. mu is held.
func (l *OneSided) waitFull() {
	l.full = true
	if err := l.wait(); err != nil {
		l.fail(err)
	}
}

// fail ends the link on its thread. Nothing is written from now on. mu is held.
func (l *OneSided) fail(err error) {
	l.dead = true
	l.loop.r.DoFor(l, func() { l.end(err) })
}

func (l *OneSided) write(b *transport.TagBlock) (n int, err error) {
	l.fdMu.RLock()
	defer l.fdMu.RUnlock()
	if l.fd < 0 {
		return 0, net.ErrClosed
	}
	return writeOnce(l.fd, b.Pieces)
}

// Work implements reactor.Owner.
func (l *OneSided) Work() guard.What { return guard.Link }

// Fault implements reactor.Owner.
func (l *OneSided) Fault(err error) { l.end(err) }

// Ready is called by the reactor.
func (l *OneSided) Ready(events uint32) {
	guard.Point("volume.link")
	const failed = unix.EPOLLERR | unix.EPOLLHUP
	if events&(unix.EPOLLOUT|failed) != 0 {
		l.resume()
	}
	if events&(unix.EPOLLIN|failed) != 0 && !l.ended {
		l.read()
	}
}

// pauseReads stops reading for napTime.
func (l *OneSided) pauseReads() {
	if l.nap == nil {
		l.nap = l.loop.r.NewTimer(l.wake).For(l)
	}
	l.nap.Reset(napTime)
	l.setResting(true)
}

func (l *OneSided) wake() {
	if l.ended {
		return
	}
	l.naps++
	l.setResting(false)
	if !l.ended {
		l.read()
	}
}

func (l *OneSided) setResting(v bool) {
	l.mu.Lock()
	l.resting = v
	err := l.wait()
	l.mu.Unlock()
	if err != nil {
		l.end(err)
	}
}

// resume goes on writing.
func (l *OneSided) resume() {
	l.mu.Lock()
	was := l.full
	l.full = false
	l.mu.Unlock()
	if !was {
		return
	}
	l.Flush()
	l.mu.Lock()
	err := l.wait()
	l.mu.Unlock()
	if err != nil {
		l.end(err)
	}
}

// tellSent tells the handler of operations that were answered before they counted as written.
func (l *OneSided) tellSent() {
	if !l.ended {
		l.in.TellSent()
	}
}

// Try is called by the reactor while it spins; see reactor.Eager.
func (l *OneSided) Try() bool {
	if l.ended || l.resting {
		return false
	}
	before := l.loop.reads
	l.read()
	return l.loop.reads != before
}

// read reads the bytes that are there, within bounds: one turn.
func (l *OneSided) read() {
	err := l.readTurn()
	l.in.EndTurn()
	if err != nil {
		l.end(err)
	}
}

func (l *OneSided) readTurn() error {
	unended := 0
	for bytes := 0; bytes < turnBytes; {
		// The domain wants earlier requests to be dealt with first.
		if l.naps < maxNaps && l.in.Deferred() {
			l.pauseReads()
			return nil
		}
		want, err := l.in.Want()
		if err != nil {
			return err
		}
		ahead := l.in.Ahead(stageBytes)
		n, err := l.loop.receive(l.fd, want, ahead)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return err
		case n == 0:
			if l.in.Partial() {
				return io.ErrUnexpectedEOF
			}
			return io.EOF
		}
		l.naps = 0
		// First comes the rest of the large payload that is under way, which went straight to its
		// place, then the bytes read behind it.
		direct := min(n, len(want))
		if err := l.in.Filled(direct); err != nil {
			return err
		}
		if err := l.in.Feed(l.loop.stage[:n-direct]); err != nil {
			return err
		}
		// The socket had no more: another call would return nothing.
		if n < len(want)+ahead {
			return nil
		}
		bytes += n
		// The handler answers at the end of a turn, and the peer of a long one would wait for it.
		if unended += n; unended >= handBytes {
			l.in.EndTurn()
			unended = 0
		}
	}
	return nil
}

// Close ends the link at once.
func (l *OneSided) Close() {
	l.mu.Lock()
	if l.h != nil {
		l.mu.Unlock()
		l.loop.r.DoFor(l, func() { l.end(net.ErrClosed) })
		return
	}
	first := !l.ended
	if first {
		l.ended, l.err = true, net.ErrClosed
	}
	l.mu.Unlock()
	if first {
		l.release()
	}
}

// end closes the link and says so to the handler. On the reactor's thread.
func (l *OneSided) end(err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended, l.err = true, err
	l.wait() // for nothing any more
	h := l.h
	l.mu.Unlock()
	if l.nap != nil {
		l.nap.Stop()
	}
	l.release()
	if h != nil { // else Start says so
		l.in.Close()
		h.Closed(err)
	}
}

// release closes the descriptor and drops posted operations, when no system call uses them
// any more.
func (l *OneSided) release() {
	l.closeFD()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.writing { // else the writing thread drops it
		l.out.Drop()
	}
}
