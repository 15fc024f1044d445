package access

import (
	"sync"
	"sync/atomic"
	"time"
)

// Turns bounds what of each user runs at a time. Go runs goroutines in the order in
// which they became ready, whoever they work for: a hundred that one client has made ready
// run before a reactor that wakes up meanwhile, and before every other client's. So those
// that a client can have many of wait here instead, where they are in nobody's way.
type Turns struct {
	most  int
	lease time.Duration

	mu sync.Mutex
	of map[uint32]*userTurns // guarded by mu; of users with a Turn
}

type userTurns struct {
	taken chan struct{} // has something for each turn that is taken
	users int           // Turns of it; guarded by Turns.mu
}

// NewTurns lets most things of a user run at a time. One that has had its turn for lease
// is taken to wait for something, and the next runs beside it; 0: it is waited for.
func NewTurns(most int, lease time.Duration) *Turns {
	return &Turns{most: most, lease: lease, of: map[uint32]*userTurns{}}
}

// Turn is for one goroutine that takes turns of a user, one after another.
type Turn struct {
	turns *Turns
	uid   uint32
	user  *userTurns
	taken atomic.Bool
	over  *time.Timer // gives it back at the end of the lease; nil: there is none, or it was never taken
}

// Of is for one who takes turns of the user. Leave must follow.
func (t *Turns) Of(uid uint32) *Turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.of[uid]
	if u == nil {
		u = &userTurns{taken: make(chan struct{}, t.most)}
		t.of[uid] = u
	}
	u.users++
	return &Turn{turns: t, uid: uid, user: u}
}

// Users is how many users there is a Turn of.
func (t *Turns) Users() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.of)
}

// Take waits for a turn, which Give ends. It reports false when done is closed before.
func (t *Turn) Take(done <-chan struct{}) bool {
	select {
	case t.user.taken <- struct{}{}:
	case <-done:
		return false
	}
	t.taken.Store(true)
	switch {
	case t.turns.lease == 0:
	case t.over == nil:
		t.over = time.AfterFunc(t.turns.lease, t.end)
	default:
		t.over.Reset(t.turns.lease)
	}
	return true
}

// Give ends the turn, if the lease has not.
func (t *Turn) Give() {
	if t.over != nil {
		t.over.Stop() // one that comes too late ends the next turn early, at worst
	}
	t.end()
}

func (t *Turn) end() {
	if t.taken.CompareAndSwap(true, false) {
		<-t.user.taken
	}
}

// Leave ends the turn too, and the taking of turns.
func (t *Turn) Leave() {
	t.Give()
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	if t.user.users--; t.user.users == 0 {
		delete(t.turns.of, t.uid)
	}
}
