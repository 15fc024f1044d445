package access

import (
	"io"
	"net"
	"sync"

	"github.com/rdsd/rdsd/internal/guard"
)

// Closers closes connections that were not let in, which count for nobody. A close takes as
// long as whoever has sent a descriptor there likes, and has a thread all that time. So one of
// a user is closed at a time, the others wait their turn with it, and nobody else waits.
type Closers struct {
	guard *guard.Guard
	most  int

	mu      sync.Mutex
	running int                     // goroutines, one of a user and most in all
	of      map[uint32]*userClosers // guarded by mu; of users of whom something is to be closed
}

type userClosers struct {
	running bool
	waits   []io.Closer
	ending  bool            // a goroutine ends fresh
	fresh   []*net.UnixConn // those whose client has not been told
}

// NewClosers closes connections of most users at a time.
func NewClosers(g *guard.Guard, most int) *Closers {
	return &Closers{guard: g, most: most, of: map[uint32]*userClosers{}}
}

// Close has c closed. It does not wait, and has nobody woken: a client may have a hundred thousand watchers
// at its end. Its client sees the end in a moment, however long others of its user take.
func (l *Closers) Close(uid uint32, c io.Closer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of[uid]
	if u == nil {
		u = &userClosers{}
		l.of[uid] = u
	}
	if k, ok := c.(*net.UnixConn); ok {
		u.fresh = append(u.fresh, k)
		if !u.ending {
			u.ending = true
			go l.tell(u)
		}
	}
	u.waits = append(u.waits, c)
	l.start(uid, u)
}

// Do has f called in the same turn: it takes as long as somebody with that uid likes, too.
func (l *Closers) Do(uid uint32, f func()) { l.Close(uid, call(f)) }

// call is a Closer.
type call func()

func (f call) Close() error {
	f()
	return nil
}

// tell tells clients of one user that their connections are over, until there are no more. One that is closed
// meanwhile has told its client.
func (l *Closers) tell(u *userClosers) {
	defer l.guard.Recover(guard.Accept, func(error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.ending = false
	})
	for {
		l.mu.Lock()
		fresh := u.fresh
		u.fresh = nil
		u.ending = len(fresh) > 0
		l.mu.Unlock()
		for _, k := range fresh {
			_ = k.CloseWrite()
			_ = k.CloseRead()
		}
		if len(fresh) == 0 {
			return
		}
	}
}

// start has the next one of a user closed, if it may be now. mu is held.
func (l *Closers) start(uid uint32, u *userClosers) {
	if u.running || len(u.waits) == 0 || l.running >= l.most {
		return
	}
	c := u.waits[0]
	u.waits[0] = nil
	u.waits = u.waits[1:]
	u.running = true
	l.running++
	go func() { // ends with the close
		defer l.guard.Recover(guard.Accept, nil)
		defer l.ended(uid, u)
		c.Close()
	}()
}

// ended lets the next one be closed: of another user, if one waits for that alone.
func (l *Closers) ended(uid uint32, u *userClosers) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.running = false
	l.running--
	if len(u.waits) == 0 {
		delete(l.of, uid)
	}
	if l.running == l.most-1 { // others may wait for this
		for uid, u := range l.of {
			l.start(uid, u)
		}
		return
	}
	l.start(uid, u)
}

// Behind is how many of a user wait for another of it.
func (l *Closers) Behind(uid uint32) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.of[uid]; u != nil {
		return len(u.waits)
	}
	return 0
}

// Waiting is how many connections wait for others to be closed.
func (l *Closers) Waiting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.of {
		n += len(u.waits)
	}
	return n
}
