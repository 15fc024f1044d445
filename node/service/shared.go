package service

import (
	"context"
	"sync"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

const (
	// statusCheap is how long status may take to be made for everybody who asks: it costs
	// little more than the call.
	statusCheap = time.Millisecond
	// statusShare bounds what status costs where it takes longer: so many times as long
	// passes without, in which who asks gets what the last one got, but no longer than
	// statusAge.
	statusShare = 20
	statusAge   = time.Second
)

// sharedStatus is the newest status of the node. To make one looks at each peer, socket and
// volume, and every user of the node may ask.
type sharedStatus struct {
	mu     sync.Mutex
	made   chan struct{}  // guarded by mu; closed when one is made, nil: none is
	newest *rdsdv1.Status // guarded by mu; not changed any more
	begun  time.Time      // guarded by mu; who came until then gets newest
	until  time.Time      // guarded by mu; so does, so long, everybody
	cost   time.Duration  // guarded by mu; how long newest took
}

// get returns a status that may have been made for somebody else: after this caller came, or,
// where it takes long, a moment before.
func (s *sharedStatus) get(ctx context.Context, f func() *rdsdv1.Status) (*rdsdv1.Status, error) {
	came := time.Now()
	for ctx.Err() == nil {
		s.mu.Lock()
		if s.newest != nil && (!s.begun.Before(came) || time.Now().Before(s.until)) {
			defer s.mu.Unlock()
			return s.newest, nil
		}
		made := s.made
		if made == nil {
			s.made = make(chan struct{})
		}
		s.mu.Unlock()
		if made == nil {
			return s.renew(f), nil
		}
		select {
		case <-made:
		case <-ctx.Done():
		}
	}
	return nil, rdserr.With(rdserr.ErrTimeout, "the status of the node was not made in time")
}

// renew makes one, for those too who wait for made.
func (s *sharedStatus) renew(f func() *rdsdv1.Status) (st *rdsdv1.Status) {
	begun := time.Now()
	defer func() { // after a panic, too: then who waits makes one
		now := time.Now()
		cost := now.Sub(begun)
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.made)
		s.made, s.newest, s.begun, s.until = nil, st, begun, time.Time{}
		// One alone that takes long may have waited for a processor.
		if min(cost, s.cost) > statusCheap {
			s.until = now.Add(min(statusShare*cost, statusAge))
		}
		s.cost = cost
	}()
	return f()
}
