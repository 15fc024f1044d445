package simtest

import (
	"bytes"
	"io"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
	"github.com/rdsd/rdsd/wire"
)

// drainTime is how long a link that is being closed is read on.
const drainTime = time.Second

// link is the shell's side of one TCP connection that belongs to a path.
type link struct {
	n       *node
	p       *conn.Path
	attempt uint64
	end     *sim.End
	fr      transport.Framer

	batch    *transport.Batch // being written
	writing  bool             // Fill was answered, Wrote not yet called
	parked   bool             // not read from yet
	paused   bool             // a receiver is full: held waits for ActResume
	held     *transport.Frame
	heldBuf  *buf.Buf
	behind   []byte // read from the connection, behind held
	closing  bool
	patience time.Duration // closing: until when it is read
	garbage  bool          // the stream cannot be followed any more
	gone     bool          // no link any more
	late     bool          // the batch met a full connection
	wdead    bool          // writing has failed: nothing is filled before Lost
	reading  bool
}

func (n *node) newLink(p *conn.Path, attempt uint64, e *sim.End) *link {
	l := &link{n: n, p: p, attempt: attempt, end: e}
	l.fr.Max = wire.MaxDatagram
	n.links[linkKey{p, attempt}] = l
	e.Readable = n.guard(l.read)
	e.Writable = n.guard(l.writable)
	if n.w.verbose != nil {
		n.w.trace("%v: gen %d is connection #%d", p, attempt, e.ID())
	}
	l.keepAlive(0)
	return l
}

// keepAlive is what the system does for an idle connection: a probe each 5 s,
// and after five without an answer it is gone.
func (l *link) keepAlive(silent int) {
	l.n.w.After(5*time.Second, func() {
		if l.gone {
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

// wakeUp reads what came before the link was in place.
func (l *link) wakeUp() { l.n.w.After(0, l.n.guard(l.read)) }

// drop forgets the link without telling anybody.
func (l *link) drop() {
	l.gone, l.parked = true, false
	l.end.Readable, l.end.Writable = nil, nil
	delete(l.n.links, linkKey{l.p, l.attempt})
	if l.writing {
		l.n.orphans = append(l.n.orphans, l)
	}
	l.free()
}

func (l *link) free() {
	l.fr.Close()
	if l.heldBuf != nil {
		l.heldBuf.Release()
	}
	l.held, l.heldBuf, l.behind = nil, nil, nil
}

// --- reading ---------------------------------------------------------------------

func (l *link) read() {
	if l.gone || l.parked || l.paused || l.reading {
		return
	}
	l.reading = true
	n := l.n
	budget := 256 << 10
	any := false
	for !l.gone && !l.paused && budget > 0 && l.end.Buffered() > 0 {
		b := l.end.Read(n.w.scratch[:0], min(budget, cap(n.w.scratch)))
		budget -= len(b)
		l.feed(b)
		any = true
	}
	l.reading = false
	if l.gone {
		return
	}
	if any {
		n.eng.ReceivedAll(n.w.Now(), l.p, l.attempt)
	}
	if !l.paused {
		if l.end.Buffered() > 0 {
			l.wakeUp()
		} else if over, err := l.end.Ended(); over {
			l.lost(err)
		}
	}
	n.after()
}

func (l *link) feed(b []byte) {
	for len(b) > 0 && !l.garbage {
		k, err := l.fr.Feed(b, l.frame)
		if err == nil {
			return
		}
		if err == conn.ErrPause {
			l.behind = append([]byte(nil), b[k:]...)
			return
		}
		if _, long := err.(*transport.ErrTooLong); long {
			l.garbage = true
			if l.attempt == l.p.Attempt() {
				l.n.eng.Drop(l.n.w.Now(), l.p, err)
			}
			return
		}
		b = b[k:]
	}
}

// frame offers one frame to the engine, and keeps it when the receiver is full.
func (l *link) frame(f *transport.Frame) error {
	err := l.n.offer(l, f)
	if err == conn.ErrPause && l.held == nil {
		l.paused = true
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

// resume offers the held frame again, then what was read behind it.
func (l *link) resume() {
	if !l.paused || l.gone {
		return
	}
	if l.held != nil {
		if err := l.n.offer(l, l.held); err == conn.ErrPause {
			return
		}
		if l.heldBuf != nil {
			l.heldBuf.Release()
		}
		l.held, l.heldBuf = nil, nil
	}
	l.paused = false
	b := l.behind
	l.behind = nil
	l.feed(b)
	if l.gone {
		return
	}
	l.n.eng.ReceivedAll(l.n.w.Now(), l.p, l.attempt)
	l.wakeUp()
}

// --- writing ---------------------------------------------------------------------

// transmit fills batches and writes them until there is nothing more, or the
// connection takes no more.
func (l *link) transmit() {
	n := l.n
	if l.gone || l.closing || l.wdead || l.writing || l.attempt != l.p.Attempt() {
		return
	}
	for {
		b := transport.GetBatch()
		if !n.eng.Fill(n.w.Now(), l.p, b) {
			b.Put()
			return
		}
		n.observeOut(l, b)
		l.batch, l.writing = b, true
		if !l.push() {
			l.late = true
			return
		}
		// The real shell writes outside its lock: others may come first.
		if n.w.rng.Intn(8) == 0 {
			d := time.Duration(n.w.rng.Int63n(int64(n.w.writeDelay)))
			n.w.After(d, n.guard(func() { l.wrote() }))
			return
		}
		if !l.finish() {
			return
		}
	}
}

// push writes what the connection takes and reports whether all is written,
// or the link cannot be written to any more.
func (l *link) push() bool {
	if l.closing {
		return true
	}
	k, err := l.end.Write(l.batch.Pieces())
	if err != nil {
		l.wdead = true
		return true
	}
	return l.batch.Wrote(k)
}

func (l *link) writable() {
	if l.writing && l.batch != nil {
		l.n.eng.Alive(l.n.w.Now(), l.p, l.attempt)
		if l.push() {
			l.wrote()
		}
	}
}

// finish ends the writing of the batch; true: Fill again on this very link.
func (l *link) finish() bool {
	n := l.n
	if !l.writing {
		return false
	}
	l.writing = false
	if l.batch != nil {
		l.batch.Put()
		l.batch = nil
	}
	if !l.tellWrote() {
		return false
	}
	if l.attempt == l.p.Attempt() && !l.gone {
		return !l.closing && !l.wdead
	}
	// The path has another link by now, and what is to be sent goes there.
	if next := n.links[linkKey{l.p, l.p.Attempt()}]; next != nil {
		next.transmit()
	}
	return false
}

func (l *link) tellWrote() (more bool) {
	n := l.n
	if !l.late {
		return n.eng.Wrote(n.w.Now(), l.p)
	}
	l.late = false
	var err error
	if l.wdead {
		err = io.ErrClosedPipe
	}
	return n.eng.WroteLate(n.w.Now(), l.p, err)
}

func (l *link) wrote() {
	if l.writing && l.finish() {
		l.transmit()
	}
	l.n.after()
}

// stopWriting ends the writing of a batch of which the link can take no more.
func (l *link) stopWriting() {
	if l.writing {
		d := time.Duration(l.n.w.rng.Int63n(int64(l.n.w.writeDelay)))
		l.n.w.After(d, l.n.guard(func() { l.wrote() }))
	}
}

// --- ending ----------------------------------------------------------------------

// close half-closes the link, which is read on until the peer has closed too.
func (l *link) close(why error) {
	if l.closing || l.gone {
		return
	}
	l.closing = true
	l.stopWriting()
	l.end.CloseWrite()
	l.patience = l.n.w.Now() + drainTime
	l.n.w.At(l.patience, l.n.guard(l.impatient))
	l.wakeUp()
}

// impatient ends a link that has waited enough for its peer. What has arrived is read all
// the same, and a paused link is given its time: a kernel peer has forgotten what TCP has
// acknowledged.
func (l *link) impatient() {
	if l.gone {
		return
	}
	if l.paused || l.end.Buffered() > 0 {
		l.n.w.After(drainTime/10, l.n.guard(l.impatient))
		return
	}
	l.lost(sim.ErrTimeout)
	l.n.after()
}

func (l *link) lost(err error) {
	if l.gone {
		return
	}
	n := l.n
	acked := l.end.Acked()
	if n.w.verbose != nil {
		n.w.trace("%v: gen %d, connection #%d is gone (%v), %d bytes acknowledged, writing %v", l.p, l.attempt, l.end.ID(), err, acked, l.writing)
	}
	l.end.Close()
	// The writer may notice before or after the reader.
	early := l.writing && n.w.rng.Intn(2) == 0
	if early {
		l.wdead = true
		l.finish()
	}
	writing := l.writing
	l.drop()
	n.eng.Lost(n.w.Now(), l.p, l.attempt, acked, err)
	if writing {
		l.stopWriting()
	}
}

// abort forgets a parked link.
func (l *link) abort() {
	l.end.Close()
	l.drop()
}
