package simtest

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
	"github.com/rdsd/rdsd/wire"
)

const (
	drainTime = time.Second // how long a link that is being closed is read on
	mostWaste = 1 << 20     // and how much of one that was given up is thrown away
	turnBytes = 256 << 10   // read in one turn
)

// link is transport.Link over a simulated connection: what package transport/tcp does
// over the kernel's, one event at a time. What it calls back for comes in turns of the
// node's thread.
type link struct {
	n             *node
	end           *sim.End
	local, remote netip.AddrPort

	h       transport.Handler // nil: not started
	p       *conn.Lane        // of h, as the onlookers know it
	attempt uint64

	fr      transport.Framer
	batch   *transport.Batch // kept until Written
	slow    bool             // all of it is written, and the call has not returned yet
	paused  bool             // the receiver is full: held waits for Resume
	held    *transport.Frame
	heldBuf *buf.Buf
	behind  []byte // read from the connection, behind held
	discard bool   // the handler has given the link up
	waste   int    // read since
	closing bool
	ended   bool
}

func (n *node) newLink(e *sim.End, local, remote netip.AddrPort) *link {
	l := &link{n: n, end: e, local: local, remote: remote}
	l.fr.Max = wire.MaxDatagram
	return l
}

// soon runs f in a turn of its own.
func (l *link) soon(f func()) { l.n.thread.Do(f) }

func (l *link) LocalAddr() netip.AddrPort  { return l.local }
func (l *link) RemoteAddr() netip.AddrPort { return l.remote }
func (l *link) Acked() uint64              { return l.end.Acked() }

// Start is called with the engine's lock held: nothing is read before it has returned.
func (l *link) Start(h transport.Handler) {
	if l.h != nil {
		return
	}
	l.h = h
	l.p, l.attempt = h.(interface{ Of() (*conn.Lane, uint64) }).Of()
	if l.n.w.verbose != nil {
		l.n.w.trace("%v: gen %d is connection #%d", l.p, l.attempt, l.end.ID())
	}
	if l.ended { // closed before: its handler hears of it
		l.ended = false
		l.soon(func() { l.finish(net.ErrClosed) })
		return
	}
	l.n.links = append(l.n.links, l)
	l.fr.Place = l.place
	l.end.Readable = l.n.guard(func() { l.n.turn(l.read) })
	l.end.Writable = l.n.guard(func() { l.n.turn(l.flush) })
	l.soon(l.read)
	l.keepAlive(0)
}

// keepAlive is what the system does for an idle connection: a probe each 5 s,
// and after five without an answer it is gone.
func (l *link) keepAlive(silent int) {
	l.n.w.After(5*time.Second, func() {
		if l.ended {
			return
		}
		if silent == 5 {
			l.end.Hang()
			return
		}
		l.end.Probe(func(alive bool) {
			if alive {
				silent = -1
			}
			l.keepAlive(silent + 1)
		})
	})
}

// --- reading ---------------------------------------------------------------------

func (l *link) read() {
	w := l.n.w
	for budget := turnBytes; !l.ended && !l.paused && budget > 0 && l.end.Buffered() > 0; {
		b := l.end.Read(w.scratch[:0], min(budget, cap(w.scratch)))
		budget -= len(b)
		if l.discard {
			if l.waste += len(b); l.waste > mostWaste {
				l.finish(os.ErrDeadlineExceeded)
				return
			}
		}
		l.h.Begin()
		l.feed(nil, b)
	}
	if l.ended || l.paused {
		return
	}
	if l.end.Buffered() > 0 {
		l.soon(l.read)
	} else if over, err := l.end.Ended(); over {
		l.finish(err)
	}
}

// feed cuts the bytes of one read into frames, the first of which may have failed with
// err, and ends what the caller began with Begin.
func (l *link) feed(err error, rest []byte) {
	for {
		if err == nil && len(rest) > 0 {
			var k int
			k, err = l.fr.Feed(rest, l.frame)
			rest = rest[k:]
		}
		if err == nil {
			l.h.End()
			return
		}
		if err == transport.ErrPause {
			l.behind = bytes.Clone(rest)
			l.paused = true
			l.h.End()
			return
		}
		if _, long := err.(*transport.ErrTooLong); long {
			l.h.End()
			l.finish(err)
			return
		}
		l.discard, err = true, nil
		l.fr.Place = nil
	}
}

// place is asked for memory for a large payload, of which the rest may come much later. Those with even numbers are
// read elsewhere, so that offer sees all that the engine makes of these, too.
func (l *link) place(raw []byte, n int) *buf.Buf {
	var h wire.Header
	h.Parse(raw)
	s := l.n.eng.Socket(h.DPort)
	if s == nil || h.Seq%2 == 0 {
		return nil
	}
	a, _ := s.Options().Data.(*app)
	if a == nil || a.m == nil {
		return nil
	}
	a.m.lends = true
	b := l.h.(transport.Placer).Buffer(raw, n)
	a.m.lends = false
	return b
}

// frame gives one frame to the handler, and keeps it if that has no room.
func (l *link) frame(f *transport.Frame) error {
	if l.discard {
		return nil
	}
	err := l.n.offer(l, f)
	if err == transport.ErrPause {
		c := &transport.Frame{Raw: bytes.Clone(f.Raw), Payload: f.Payload, Buf: f.Buf}
		if f.Buf != nil {
			f.Buf.Ref()
			l.heldBuf = f.Buf
		} else {
			c.Payload = bytes.Clone(f.Payload)
		}
		l.held = c
	}
	return err
}

func (l *link) Resume() { l.soon(l.resume) }

// resume offers the held frame again, then what was read behind it.
func (l *link) resume() {
	if !l.paused || l.ended {
		return
	}
	held, b := l.held, l.heldBuf
	l.h.Begin()
	err := l.n.offer(l, held)
	if err == transport.ErrPause {
		l.h.End()
		return
	}
	l.held, l.heldBuf, l.paused = nil, nil, false
	rest := l.behind
	l.behind = nil
	l.feed(err, rest)
	if b != nil {
		b.Release()
	}
	if !l.paused && !l.ended {
		l.soon(l.read)
	}
}

// --- writing ---------------------------------------------------------------------

// Send writes what the connection takes. Now and then the call takes its time, and others
// come first.
func (l *link) Send(b *transport.Batch) (done bool, err error) {
	n := l.n
	n.observeOut(l, b)
	if l.ended || l.closing {
		return false, net.ErrClosed
	}
	k, err := l.end.Write(b.Pieces)
	if err != nil {
		return false, err
	}
	if done = b.Wrote(k); done && n.w.rng.Intn(8) != 0 {
		return true, nil
	}
	l.batch, l.slow = b, done
	if done {
		n.w.After(time.Duration(n.w.rng.Int63n(int64(n.w.writeDelay))), n.guard(func() {
			n.turn(func() {
				if l.slow {
					l.written(nil)
				}
			})
		}))
	}
	return false, nil
}

// flush goes on with a batch that met a full connection.
func (l *link) flush() {
	if l.batch == nil || l.slow || l.ended {
		return
	}
	k, err := l.end.Write(l.batch.Pieces)
	if err == nil && !l.batch.Wrote(k) {
		if k > 0 {
			l.h.Progress()
		}
		return
	}
	l.written(err)
}

func (l *link) written(err error) {
	b := l.batch
	l.batch, l.slow = nil, false
	l.h.Written(b, err)
}

// --- ending ----------------------------------------------------------------------

// Close shuts our side; the connection is read on until the peer has closed too, for a
// bounded time.
func (l *link) Close() {
	if l.letGo() || l.closing {
		return
	}
	l.closing = true
	l.end.CloseWrite()
	l.soon(l.flush) // what is left of a batch cannot be written any more
	l.n.w.After(drainTime, l.n.guard(func() { l.n.turn(l.impatient) }))
}

func (l *link) Abort() {
	if !l.letGo() {
		l.closing = true
		l.soon(func() { l.finish(net.ErrClosed) })
	}
}

// letGo ends a link that was not started, and reports whether it has no more to end.
func (l *link) letGo() bool {
	if l.h == nil && !l.ended {
		l.ended = true
		l.end.Close()
	}
	return l.ended
}

// impatient ends a link that has waited enough for its peer. What has arrived is read all
// the same, and a paused link is given its time: a kernel peer has forgotten what TCP has
// acknowledged.
func (l *link) impatient() {
	switch {
	case l.ended:
	case l.paused || l.end.Buffered() > 0:
		l.n.w.After(drainTime/10, l.n.guard(func() { l.n.turn(l.impatient) }))
	default:
		l.finish(os.ErrDeadlineExceeded)
	}
}

// finish ends the link and says so to the handler, after the batch has gone back.
func (l *link) finish(err error) {
	if l.ended {
		return
	}
	n := l.n
	acked := l.end.Acked()
	if n.w.verbose != nil {
		n.w.trace("%v: gen %d, connection #%d is gone (%v), %d bytes acknowledged, writing %v", l.p, l.attempt, l.end.ID(), err, acked, l.batch != nil)
	}
	l.ended = true
	l.end.Close()
	l.free()
	n.forget(l)
	if l.batch != nil {
		if err == nil {
			l.written(net.ErrClosed)
		} else {
			l.written(err)
		}
	}
	l.h.Closed(err, acked)
}

func (l *link) free() {
	l.fr.Close()
	if l.heldBuf != nil {
		l.heldBuf.Release()
	}
	l.held, l.heldBuf, l.behind = nil, nil, nil
}
