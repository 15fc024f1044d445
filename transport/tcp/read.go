package tcp

import (
	"errors"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

const (
	stageBytes = 64 << 10  // one read of small messages
	aheadBytes = 4 << 10   // read behind the rest of a large payload: the next header, little that must be copied
	turnBytes  = 256 << 10 // from one link, before others have their turn

	// mostWaste is how much is read and thrown away of a link that was given up: a peer
	// that goes on sending is not read for the whole second that a close may take.
	mostWaste = 1 << 20
)

const _ = uint(transport.MostBehind - stageBytes - aheadBytes) // does not compile if that is less than a read brings

// loop holds the state that the links of one reactor share. Its thread owns it.
type loop struct {
	r     *reactor.Reactor
	stage [stageBytes]byte // the bytes of one read; used up before the next
	iov   [2]unix.Iovec
	reads uint64 // that brought something, an end too
}

// Try reads the bytes that are there, within bounds, and reports whether there were any, or the
// end. The reactor calls it while it spins, see reactor.Eager.
func (l *Link) Try() (worked bool) {
	if l.paused || l.ended {
		return false
	}
	for bytes := 0; bytes < turnBytes; {
		if l.gate != nil && !l.mayRead() {
			return worked
		}
		want := l.framer.Want
		// The rest of a large payload is read to its place, and a little behind it, which usually
		// has the next header, in the same call.
		room := stageBytes
		if want != nil {
			room = len(want) + aheadBytes
		}
		n, err := l.loop.receive(l.fd, want, room-len(want))
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return worked
		case err != nil:
			l.end(err)
			return true
		case n == 0:
			l.end(io.EOF)
			return true
		}
		worked = true
		// A read of bytes that TCP had taken before shows that there may be more.
		if l.deaf {
			l.drain.Reset(deafTime)
		}
		if l.discard {
			// A peer that goes on sending to a link that was given up is not listened to for ever.
			if l.waste += n; l.waste > mostWaste {
				l.end(os.ErrDeadlineExceeded)
				return true
			}
		}
		direct := min(n, len(want))
		// Begin and End around all frames of one read: the handler takes its lock and answers
		// once.
		l.h.Begin()
		if direct > 0 {
			err = l.framer.Filled(direct, l.frame)
		}
		l.feed(err, l.loop.stage[:n-direct])
		// The socket had no more than this, or nothing more may be read.
		if n < room || l.paused || l.ended {
			return true
		}
		bytes += n
	}
	return true
}

// receive reads once, into want and then into room bytes of the stage. Neither call
// blocks, so the runtime's scheduler need not know (RawSyscall).
func (p *loop) receive(fd int, want []byte, room int) (int, error) {
	var n uintptr
	var e unix.Errno
	if want == nil {
		n, _, e = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p.stage[0])), uintptr(room), unix.MSG_DONTWAIT, 0, 0)
	} else {
		p.iov[0].Base, p.iov[1].Base = &want[0], &p.stage[0]
		p.iov[0].SetLen(len(want))
		p.iov[1].SetLen(room)
		n, _, e = unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&p.iov[0])), uintptr(len(p.iov)))
		p.iov[0].Base = nil
	}
	if e != unix.EAGAIN && e != unix.EINTR {
		p.reads++
	}
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// feed cuts the bytes of one read into frames, the first of which may have
// failed with err, and ends what the caller began with Handler.Begin.
func (l *Link) feed(err error, rest []byte) {
	for {
		if err == nil && len(rest) > 0 {
			var n int
			n, err = l.framer.Feed(rest, l.frame)
			rest = rest[n:]
		}
		if err == nil {
			l.h.End()
			return
		}
		// The receiver is full. Bytes that were read and not taken are kept, and come first when
		// it has room; TCP stops the peer.
		if err == transport.ErrPause {
			l.held.keepRest(rest)
			l.h.End()
			l.setPaused(true)
			return
		}
		// Where the next frame begins is unknown.
		if long := (*transport.ErrTooLong)(nil); errors.As(err, &long) {
			l.h.End()
			l.end(err)
			return
		}
		// The handler has given the link up. It is read on to its end nevertheless, and the bytes
		// are thrown away: closed with bytes unread, TCP would reset the connection and drop
		// frames that are still on their way to the peer.
		l.discard, err = true, nil
		l.framer.Place = nil
	}
}

// frame gives one frame to the handler, and keeps it if that has no room.
func (l *Link) frame(f *transport.Frame) error {
	if l.discard {
		return nil
	}
	err := l.h.Frame(f)
	if err == transport.ErrPause {
		l.held = hold(f)
	}
	return err
}

// --- pausing -----------------------------------------------------------------

// held is kept during a pause: the frame that was not taken, and the bytes read behind it.
type held struct {
	raw     [wire.HeaderLen]byte
	payload *buf.Buf
	alone   bool // the payload came in a buffer of its own
	rest    *buf.Buf
}

func hold(f *transport.Frame) *held {
	k := &held{payload: f.Buf, alone: f.Buf != nil}
	copy(k.raw[:], f.Raw)
	if k.alone {
		k.payload.Ref()
	} else {
		k.payload = buf.Get(len(f.Payload))
		copy(k.payload.B, f.Payload)
	}
	return k
}

func (k *held) keepRest(rest []byte) {
	if len(rest) > 0 {
		k.rest = buf.Get(len(rest))
		copy(k.rest.B, rest)
	}
}

func (k *held) frame() *transport.Frame {
	f := &transport.Frame{Raw: k.raw[:], Payload: k.payload.B}
	if k.alone {
		f.Buf = k.payload
	}
	return f
}

func (k *held) drop() {
	k.payload.Release()
	if k.rest != nil {
		k.rest.Release()
	}
}

func (l *Link) setPaused(v bool) {
	l.mu.Lock()
	l.paused = v
	err := l.wait()
	l.mu.Unlock()
	if err != nil {
		l.end(err)
	}
}

// A link that may not be read is asked again after gateMin, and each time twice as long up to
// gateMax: there may be thousands, and nobody tells them.
const (
	gateMin = 5 * time.Millisecond
	gateMax = 320 * time.Millisecond
)

// mayRead asks the gate, and pauses the link if it says no. What was given up is read in any
// case: nothing of it is kept.
func (l *Link) mayRead() bool {
	if l.discard || l.gate.MayRead() {
		l.patience = 0
		return true
	}
	if l.again == nil {
		l.again = l.loop.r.NewTimer(l.askAgain).For(l)
	}
	l.patience = min(max(2*l.patience, gateMin), gateMax)
	l.setPaused(true)
	l.again.Reset(l.patience)
	return false
}

// askAgain asks the gate, and has the link read again if it may be: there may be nothing to read,
// and then nobody else asks.
func (l *Link) askAgain() {
	if !l.paused || l.held != nil || l.ended {
		return
	}
	if l.deaf {
		l.drain.Reset(deafTime)
	}
	if l.mayRead() {
		l.setPaused(false)
	}
}

// Resume goes on reading. The pause has been noted before resume runs, because a pause
// begins and ends on the thread.
func (l *Link) Resume() { l.loop.r.DoFor(l, l.resume) }

func (l *Link) resume() {
	if !l.paused || l.ended {
		return
	}
	k := l.held
	if k == nil { // the gate's pause, which its timer ends
		return
	}
	l.h.Begin()
	err := l.h.Frame(k.frame())
	if err == transport.ErrPause { // as full as before
		l.h.End()
		return
	}
	l.held = nil
	if l.deaf {
		l.drain.Reset(deafTime)
	}
	var rest []byte
	if k.rest != nil {
		rest = k.rest.B
	}
	l.feed(err, rest)
	k.drop()
	if l.held == nil && !l.ended {
		l.setPaused(false)
	}
}
