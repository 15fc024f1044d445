package service

import "sync"

// refusals counts the connections that live to be told why they are not served, for as long as
// somebody may be told something there, and until they have ended. The second may take as long as
// a descriptor likes that the client has sent, and costs a thread or two.
type refusals struct {
	mu    sync.Mutex
	lives int            // guarded by mu; those that are told
	held  int            // guarded by mu; those that have not ended
	of    map[uint32]int // guarded by mu; the same by user
}

const (
	// maxRefusals bounds the connections that are being told why they are not served, and those
	// of one user that have not ended.
	maxRefusals = 4
	// heldRefusals bounds those of all users that have not ended.
	heldRefusals = 64
)

// begin reports whether a connection of a user may be told.
func (r *refusals) begin(uid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lives >= maxRefusals || r.of[uid] >= maxRefusals || r.held >= heldRefusals {
		return false
	}
	if r.of == nil {
		r.of = map[uint32]int{}
	}
	r.lives++
	r.held++
	r.of[uid]++
	return true
}

// told ends the time in which one is told.
func (r *refusals) told() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lives--
}

// ended says that one of a user's is no more.
func (r *refusals) ended(uid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held--
	if r.of[uid]--; r.of[uid] == 0 {
		delete(r.of, uid)
	}
}
