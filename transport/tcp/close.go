package tcp

import (
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
)

const (
	drainTime = time.Second
	deafTime  = 20 * time.Millisecond // for each read of bytes that TCP had taken before deafen
)

// Close shuts our side and reads the peer's bytes to their end, because the peer's kernel
// has forgotten the messages that our TCP acknowledged.
func (l *Link) Close() {
	started, again := l.close()
	if !started || again {
		return
	}
	l.fdMu.Lock() // who reads fin has it as TCP has
	if l.fd >= 0 {
		l.fin = unix.Shutdown(l.fd, unix.SHUT_WR) == nil
	}
	l.fdMu.Unlock()
	l.loop.r.DoFor(l, l.startDrain)
}

// Abort closes the descriptor; frames that the kernel still holds may be lost.
func (l *Link) Abort() {
	if started, _ := l.close(); started {
		l.loop.r.DoFor(l, func() { l.end(net.ErrClosed) })
	}
}

// close notes that the link's owner has let go of it, and says whether it was started and
// whether it was let go of before. One that was not started has no thread yet that could
// end it later: its descriptor is closed here.
func (l *Link) close() (started, again bool) {
	l.mu.Lock()
	started, again = l.h != nil, l.closing
	l.closing = true
	if !started {
		l.ended = true
	}
	l.mu.Unlock()
	if !started {
		l.closeFD()
	}
	return started, again
}

// end closes the link and says so to the handler. On the reactor's thread.
func (l *Link) end(err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	b := l.out
	l.out = nil
	if l.why != nil {
		err = l.why
	}
	l.wait() // for nothing any more
	l.mu.Unlock()
	if l.drain != nil {
		l.drain.Stop()
	}
	if l.again != nil {
		l.again.Stop()
	}
	// This needs the descriptor: messages that TCP has acknowledged by now need not be sent
	// again.
	acked := l.Acked()
	l.closeFD()
	l.framer.Close()
	if l.held != nil {
		l.held.drop()
		l.held = nil
	}
	// The batch goes back before Closed is called: the handler may count on that.
	if b != nil {
		l.h.Written(b, err)
	}
	l.h.Closed(err, acked)
}

func (l *Link) startDrain() {
	if !l.ended {
		l.drain = l.loop.r.NewTimer(l.drainDue).For(l)
		l.drain.Reset(drainTime)
	}
}

// drainDue ends the drain when the peer has had its time. First it makes the link deaf, so
// that only what has arrived already is still read; it ends the link when nothing more of
// that is there.
func (l *Link) drainDue() {
	switch {
	case l.ended:
	case !l.deaf:
		if err := l.deafen(); err != nil {
			l.end(os.ErrDeadlineExceeded)
			return
		}
		l.deaf = true
		l.drain.Reset(deafTime)
	case l.paused: // resume goes on, or an abort comes
	default:
		// The reactor may have been busy elsewhere, so bytes that are there count.
		if n, err := unix.IoctlGetInt(l.fd, unix.SIOCINQ); err == nil && n > 0 {
			l.drain.Reset(deafTime)
			return
		}
		l.end(os.ErrDeadlineExceeded)
	}
}

// deafen ends the drain of a link whose peer goes on, or does not close in turn: Linux 6.1
// takes a connection that we shut before it was accepted for one that is up, and would
// believe in it as long as our TCP answers. From here on TCP takes nothing more (the filter
// drops every segment), so that all the bytes that the peer may forget can still be read;
// then closing resets the connection.
func (l *Link) deafen() error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err := unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &drop})
	unix.SetsockoptLinger(l.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	return err
}

var (
	_ transport.Link = (*Link)(nil)
	_ reactor.Eager  = (*Link)(nil)
)
