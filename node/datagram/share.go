package datagram

import "time"

// What a reactor does for the rings of one user in a turn is bounded, however many
// sockets the user has: with a bound for each socket alone, a thousand of them would
// have everybody else wait for a thousand times as much. Who finds the share spent
// is served in the next turn, which begins with the first of them.

const (
	// sharePosts and shareBytes are what is taken of a user's send rings in a turn, the
	// bytes of what stays at its address, for that is copied: some hundred microseconds.
	sharePosts = 256
	shareBytes = 1 << 20
	// shareLooks is how often a turn looks for messages on the control connections of a
	// user's rings: with a message each is some ten microseconds.
	shareLooks = 8
)

// Share is what was taken of a user's rings in a turn. It belongs to a worker and is owned by
// its thread. A turn is known by when it began; the first call of another one finds the
// share of the last and begins anew, so that nothing is to be done at the end of a turn.
type Share struct {
	// Posts and Bytes are what is left of the turn: how many descriptors may be taken, and how many
	// bytes of them that are copied at once. Who takes some takes them away here, and takes no more
	// when one of them is spent.
	Posts, Bytes int

	turn   time.Duration // that they are of
	first  *Ring         // nobody is served before it; nil: everybody may be
	next   *Ring         // who found the share spent first
	looked time.Duration // the turn that looks is of
	looks  int           // for messages; they have no part in the order above
	refs   int           // rings of the user
}

// Share is that of a user; Unshare is for each call.
func (w *Worker) Share(uid uint32) *Share {
	s := w.shares[uid]
	if s == nil {
		s = &Share{}
		w.shares[uid] = s
	}
	s.refs++
	return s
}

// Unshare is for each Share of a user.
func (w *Worker) Unshare(uid uint32) {
	if s := w.shares[uid]; s.refs > 1 {
		s.refs--
	} else {
		delete(w.shares, uid)
	}
}

// May reports whether descriptors of r may be taken in the turn that began at turn. A reactor
// asks all that have some in the same order each turn.
func (s *Share) May(turn time.Duration, r *Ring) bool {
	if s.turn != turn {
		// Who was to be the first of the last turn and did not come has gone.
		s.turn, s.Posts, s.Bytes = turn, sharePosts, shareBytes
		s.first, s.next = s.next, nil
	}
	if s.first == r {
		s.first = nil
	}
	if s.first != nil {
		return false
	}
	if s.Posts <= 0 || s.Bytes <= 0 {
		if s.next == nil {
			s.next = r
		}
		return false
	}
	return true
}

// MayLook counts that a message of a client is about to be looked for; false: not in
// this turn.
func (s *Share) MayLook(turn time.Duration) bool {
	if s.looked != turn {
		s.looked, s.looks = turn, 0
	}
	if s.looks >= shareLooks {
		return false
	}
	s.looks++
	return true
}
