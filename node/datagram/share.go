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
	// shareReleases is how many slots a turn takes back from a user's clients, some tens of
	// nanoseconds each, with the events that find room.
	shareReleases = 4096
	// shareNudges is how many readers of pairs a turn rings for a user: a system call each.
	shareNudges = 64
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
	// Releases and Nudges are the same of what clients give back, and of readers to be rung.
	Releases, Nudges int

	posts, releases, nudges order
	looked                  time.Duration // the turn that looks is of
	looks                   int           // for messages; they have no order
	refs                    int           // rings of the user
}

// order is who is served when a share does not last for all.
type order struct {
	turn  time.Duration
	first *Ring // nobody is served before it; nil: everybody may be
	next  *Ring // who found the share spent first
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
	if s.posts.turn != turn {
		s.Posts, s.Bytes = sharePosts, shareBytes
		s.posts.begin(turn)
	}
	return s.posts.may(r, s.Posts > 0 && s.Bytes > 0)
}

// MayRelease is May of what r's client has given back: slots, and room for events.
func (s *Share) MayRelease(turn time.Duration, r *Ring) bool {
	if s.releases.turn != turn {
		s.Releases = shareReleases
		s.releases.begin(turn)
	}
	return s.releases.may(r, s.Releases > 0)
}

// MayRing is May of the readers that r's client asks to have rung.
func (s *Share) MayRing(turn time.Duration, r *Ring) bool {
	if s.nudges.turn != turn {
		s.Nudges = shareNudges
		s.nudges.begin(turn)
	}
	return s.nudges.may(r, s.Nudges > 0)
}

// begin is for another turn. Who was to be the first of the last one and did not come has gone.
func (o *order) begin(turn time.Duration) { o.turn, o.first, o.next = turn, o.next, nil }

// may reports whether it is r's turn, left being whether there is something left of the share.
func (o *order) may(r *Ring, left bool) bool {
	if o.first == r {
		o.first = nil
	}
	if o.first != nil {
		return false
	}
	if !left && o.next == nil {
		o.next = r
	}
	return left
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
