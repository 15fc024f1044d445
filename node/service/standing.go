package service

import (
	"context"
	"sync"

	"github.com/rdsd/rdsd/rdserr"
)

// Most calls end at once, and what a user may ask for of them is bounded by its calls a
// second. Some stand: a ping until it is answered, a watch until its caller has seen enough.
// Each holds something for that long that is not its user's alone. A ping has a port and a
// place among the sockets of an address. Every watch is told of every change, on the thread
// that changes something, and all of them are walked when one begins or ends. So a user has so many
// at once, and no more.
const (
	maxPings   = 64
	maxWatches = 128 // of congestion, and as many of volumes
)

// standing counts the calls of a kind that stand, for each user.
type standing struct {
	what string // in the plural
	most int

	mu     sync.Mutex
	byUser map[uint32]int // guarded by mu; without zeros
}

func newStanding(what string, most int) *standing {
	return &standing{what: what, most: most, byUser: map[uint32]int{}}
}

// enter counts a call of whoever calls, until leave is called.
func (s *standing) enter(ctx context.Context) (leave func(), err error) {
	uid := identityFrom(ctx).UID
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUser[uid] >= s.most {
		return nil, rdserr.With(rdserr.ErrTooMany, "uid %d has %d %s under way, and may have no more at once; end one", uid, s.most, s.what)
	}
	s.byUser[uid]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byUser[uid]--; s.byUser[uid] == 0 {
			delete(s.byUser, uid)
		}
	}, nil
}
