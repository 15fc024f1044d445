package nbd

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
)

// Design notes.
//
// On a reactor a connection has no goroutine at work: the one that negotiated sleeps until
// the connection has ended. The reactor's thread reads requests and submits them, and sends
// the replies to those it completes itself at the end of its turn, in one writev. Nothing
// waits there: a read without room (lacksRoom), or a write that meets a full socket (full),
// goes on when recycle gives room back or the socket is writable.

// loop is a connection's place on a reactor.
type loop struct {
	c     *conn
	r     *reactor.Reactor
	s     *fdStream
	ended chan error     // the result of receive; room for one
	timer *reactor.Timer // of linger

	turnFn, resumeFn, sendFn func()

	over bool // the grace after stop has passed; owned by the thread

	// Guarded by conn.mu. reading is changed by the thread alone once it is set.
	reading bool
	starved bool      // reading goes on when something is given back
	full    bool      // the transmit token waits for the socket
	due     time.Time // when the client must have read some; zero: whenever it likes
	watched uint32    // events the reactor was asked for; 0: not registered
}

// turnBytes is about how much is read from one connection before others have their turn.
const turnBytes = 512 << 10

// newLoop takes a socket from Go's poller, which would be woken by each packet;
// nil: nc is no socket, or there is no descriptor left for it.
func newLoop(c *conn, nc net.Conn, r *reactor.Reactor) *loop {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	fd := -1
	if e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return nil
	}
	nc.Close()
	setSendBuffer(fd)
	l := &loop{c: c, r: r, s: &fdStream{fd: fd, looks: takesRights(fd)}, ended: make(chan error, 1)}
	l.timer = r.NewTimer(l.late).For(l)
	l.turnFn, l.resumeFn, l.sendFn = l.turn, l.resume, l.send
	return l
}

// receive has the thread receive.
func (l *loop) receive() error {
	l.c.mu.Lock()
	l.reading = true
	err := l.watch()
	if err != nil {
		l.reading = false
	}
	l.c.mu.Unlock()
	if err != nil {
		return err
	}
	l.r.DoFor(l, l.turnFn) // it may have been stopped already
	select {
	case err = <-l.ended:
	case <-l.r.Done(): // nobody would say that it has ended
		select {
		case err = <-l.ended:
		default:
			err = net.ErrClosed
		}
	}
	return err
}

// watch asks the reactor for the events that the connection waits for. A connection that
// waits for none is not registered, because its end would be reported in every turn. It is
// called with conn.mu held.
func (l *loop) watch() error {
	var want uint32
	if l.reading && !l.starved {
		want |= unix.EPOLLIN
	}
	if l.full {
		want |= unix.EPOLLOUT
	}
	was := l.watched
	if want == was {
		return nil
	}
	l.watched = want
	switch {
	case was == 0:
		return l.r.Add(l.s.fd, want, l)
	case want == 0:
		return l.r.Remove(l.s.fd)
	}
	return l.r.Modify(l.s.fd, want)
}

// Ready is called by the reactor.
func (l *loop) Ready(events uint32) {
	guard.Point("nbd.ready")
	const failed = unix.EPOLLERR | unix.EPOLLHUP
	if events&(unix.EPOLLOUT|failed) != 0 {
		l.writable()
	}
	if events&(unix.EPOLLIN|failed) != 0 {
		l.turn()
	}
}

// Work implements reactor.Owner.
func (l *loop) Work() guard.What { return guard.Volume }

// Fault implements reactor.Owner: the connection breaks, and requests in flight come back.
func (l *loop) Fault(err error) {
	l.c.fault(err)
	if l.reading {
		l.end(err)
	}
}

// turn reads the bytes that are there, within bounds, and hands the requests on.
func (l *loop) turn() {
	c := l.c
	c.mu.Lock() // receive may be about to begin
	reading := l.reading
	c.mu.Unlock()
	// Parse first: bytes of an earlier turn may be there that found no memory then.
	for bytes := 0; reading && l.reading; {
		err := c.parse()
		c.submit()
		switch {
		case err == errNoRoom:
		case err != nil:
		case l.over:
			err = errDisconnect
		case bytes >= turnBytes || bytes > 0 && c.short: // there is no more, or it brings us back
			c.idle()
			return
		default:
			var n int
			n, err = c.fillNow()
			c.srv.count.bytesIn.Add(uint64(n))
			bytes += n
		}
		switch err {
		case nil:
		case errAgain:
			c.idle()
			return
		// The reactor's thread must not wait. If memory came back since parse looked, the
		// turn goes on.
		case errNoRoom:
			if l.pauseRead() {
				return
			}
		default:
			l.end(c.outcome(err))
		}
	}
}

// end ends the reading.
func (l *loop) end(err error) {
	l.c.mu.Lock()
	l.reading = false
	l.watch()
	l.c.mu.Unlock()
	l.ended <- err
}

// pauseRead stops reading until memory is given back. It returns false if some was,
// meanwhile.
func (l *loop) pauseRead() bool {
	c := l.c
	c.mu.Lock()
	l.starved = c.waitsForRoom()
	err := l.watch()
	starved := l.starved
	c.mu.Unlock()
	if err != nil {
		l.end(err)
	}
	return starved
}

// resumeRead schedules reading again after memory was given back. Any thread may call it,
// with conn.mu held.
func (l *loop) resumeRead() {
	if l != nil && l.starved {
		l.starved = false
		l.r.DoFor(l, l.resumeFn)
	}
}

func (l *loop) resume() {
	l.c.mu.Lock()
	err := l.watch()
	l.c.mu.Unlock()
	if err != nil && l.reading {
		l.end(err)
	}
	l.turn()
}

// send is called with the transmit token and never waits.
func (l *loop) send() {
	if !l.c.transmit(sendRounds, false) {
		l.waitFull()
	}
}

// waitFull leaves the token with the socket: the thread goes on when that takes more.
func (l *loop) waitFull() {
	c := l.c
	c.mu.Lock()
	l.full = true
	c.stuck.begin(c)
	if c.last.Load() && l.due.IsZero() {
		l.startLinger()
	}
	err := l.watch()
	if err != nil {
		l.full = false
	}
	c.mu.Unlock()
	if err != nil {
		c.fail()
		c.transmit(0, false) // to nobody
	}
}

func (l *loop) writable() {
	c := l.c
	c.mu.Lock()
	was := l.full
	l.full = false
	c.stuck.end()
	c.mu.Unlock()
	if !was {
		return
	}
	l.send()
	c.mu.Lock()
	err := l.watch()
	c.mu.Unlock()
	if err != nil && l.reading {
		l.end(err)
	}
}

// startLinger is called with conn.mu held.
func (l *loop) startLinger() {
	l.due = time.Now().Add(l.c.srv.opts.Linger)
	l.timer.Reset(l.c.srv.opts.Linger)
}

// linger is conn.linger: time counts only while the client's socket is full.
func (l *loop) linger() {
	l.c.mu.Lock()
	l.due = time.Time{}
	if l.full {
		l.startLinger()
	}
	l.c.mu.Unlock()
}

func (l *loop) late() {
	l.c.mu.Lock()
	late := l.full && !l.due.IsZero() && !time.Now().Before(l.due)
	l.c.mu.Unlock()
	if late {
		l.c.fail()
	}
}

// stop ends the reading when the client had its grace.
func (l *loop) stop() {
	l.r.After(shutdownGrace, func() {
		l.over = true
		l.turn()
	})
}

// leave ends the reading as soon as the thread comes to it.
func (l *loop) leave() {
	l.r.Do(func() {
		l.over = true
		l.turn()
	})
}

// close closes the descriptor. Nothing is read any more, and no thread has the token.
func (l *loop) close() {
	l.c.mu.Lock()
	l.watch()
	l.c.mu.Unlock()
	l.timer.Stop()
	l.r.Sync()
	l.s.close()
}
