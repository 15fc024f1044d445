package service

import (
	"sync"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

const (
	// fewThings is how many peers and sockets a node may have for its status to be made for
	// everybody who asks: it costs less than the call.
	fewThings = 500
	// statusShare bounds what status costs where there are more: so many times as long
	// passes without, in which who asks gets what the last one got, but no longer than
	// statusAge.
	statusShare = 20
	statusAge   = time.Second
)

// sharedStatus is the newest status of a node with many peers or sockets. To make one looks
// at each of them, and every user of the node may ask.
type sharedStatus struct {
	mu     sync.Mutex     // held while one is made: who comes meanwhile gets that
	newest *rdsdv1.Status // guarded by mu; not changed any more
	until  time.Time      // guarded by mu; so long it is what who asks gets
}

// get returns a status that may have been made for somebody else a moment ago.
func (s *sharedStatus) get(make func() *rdsdv1.Status) *rdsdv1.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := time.Now()
	if s.newest != nil && begun.Before(s.until) {
		return s.newest
	}
	st := make()
	s.newest = nil
	if st.GetPeers()+st.GetSockets() > fewThings {
		now := time.Now()
		s.newest, s.until = st, now.Add(min(statusShare*now.Sub(begun), statusAge))
	}
	return st
}
