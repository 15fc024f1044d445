package accept

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
)

// Pauses after an error: the first, and the longest.
const (
	pauseMin = time.Millisecond
	pauseMax = time.Second
)

// refuseTime is how long a connection that is refused may take to be closed before the loop goes on.
const refuseTime = 200 * time.Millisecond

// sayEvery is how often a loop that goes on failing says so.
const sayEvery = 10 * time.Second

// Listener accepts on another one and keeps at it: Accept returns an error only when
// the listener is closed. It may be given to servers with a loop of their own.
type Listener struct {
	net.Listener
	What    string         // it is, in the log
	Log     *slog.Logger   // nil: none
	Failed  *atomic.Uint64 // counts errors; may be nil
	Reserve *Reserve       // may be nil
	// Refuse tells a connection that was accepted with the reserve why it ends. It must not
	// wait, and need not close the connection. If it is nil the connection is closed
	// without a reason.
	Refuse func(c net.Conn, err error)
	Guard  *guard.Guard // contains panics of Refuse; nil: none is
	// Hold is asked before each connection is accepted; while it says so none is. It may be nil.
	Hold func() bool

	pause time.Duration // owned by the accepting goroutine
	said  time.Time
	// refused is closed when the connection that was refused last has been closed; owned like pause.
	refused chan struct{}
	done    chan struct{}
	once    sync.Once
}

// New is a Listener over l; fields may be set before the first Accept.
func New(l net.Listener, what string, log *slog.Logger) *Listener {
	return &Listener{Listener: l, What: what, Log: log, done: make(chan struct{})}
}

// Accept waits for a connection. One goroutine at a time calls it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		if !l.held() {
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err == nil {
			l.pause = 0
			return c, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		if l.Failed != nil {
			l.Failed.Add(1)
		}
		l.say(err)
		if noDescriptor(err) && l.Reserve != nil && !l.refusing() {
			took := false
			l.Reserve.use(func() { took = l.refuseOne(err) })
			if took {
				continue // the next may wait as this one did
			}
		}
		if !l.wait(err) {
			return nil, net.ErrClosed
		}
	}
}

// holdLook is how often Hold is asked again.
const holdLook = 10 * time.Millisecond

// held waits as long as Hold says so; false: the listener is closed.
func (l *Listener) held() bool {
	for l.Hold != nil && l.Hold() {
		select {
		case <-time.After(holdLook):
		case <-l.done:
			return false
		}
	}
	return true
}

// noDescriptor reports whether the process, or the system, has no descriptor left.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// ofOne reports whether the error is of one connection that is gone, so that the next may
// be fine.
func ofOne(err error) bool {
	for _, e := range []error{syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EPROTO, syscall.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuseOne takes one connection with the descriptor that was kept for that. If another
// goroutine was faster to take the descriptor, nothing happens: the connection goes on
// waiting.
func (l *Listener) refuseOne(why error) (took bool) {
	if d, ok := l.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		d.SetDeadline(time.Now().Add(10 * time.Millisecond)) // it may have gone by itself
		defer d.SetDeadline(time.Time{})
	} else {
		return false // it could wait for ever with the reserve in its hands
	}
	c, err := l.Listener.Accept()
	if err != nil {
		return false
	}
	refused := make(chan struct{})
	l.refused = refused
	go func() { // ends when c is closed, which takes as long as the owner of a descriptor that was sent there likes
		defer close(refused)
		defer l.Guard.Recover(guard.Accept, nil)
		defer c.Close()
		if l.Refuse != nil {
			l.Refuse(c, why)
		}
	}()
	t := time.NewTimer(refuseTime)
	defer t.Stop()
	select {
	case <-refused:
	case <-t.C:
	}
	return true
}

// refusing reports whether the connection that was refused last is not closed yet. It has the
// reserve, and no other gets one.
func (l *Listener) refusing() bool {
	select {
	case <-l.refused:
		return false
	default:
		return l.refused != nil
	}
}

func (l *Listener) say(err error) {
	now := time.Now()
	if l.Log == nil || ofOne(err) || now.Sub(l.said) < sayEvery {
		return
	}
	l.said = now
	l.Log.Error("connections cannot be accepted for now", "listener", l.What, "error", err)
}

// wait lets some time pass, longer each time; false: the listener is closed.
func (l *Listener) wait(err error) bool {
	if ofOne(err) && l.pause == 0 {
		l.pause = -1 // the next of them waits
		return true
	}
	l.pause = min(max(2*l.pause, pauseMin), pauseMax)
	t := time.NewTimer(l.pause)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.done:
		return false
	}
}

// Close closes the listener and ends a pause.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// Inner is the listener below.
func (l *Listener) Inner() net.Listener { return l.Listener }
