package datagram

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

// Share is what was taken of a user's rings in the turn under way. It belongs to
// a worker and is owned by its thread.
type Share struct {
	posts, bytes int
	looks        int   // for messages; they have no part in the order below
	begun        bool  // end is to be called
	first        *Ring // nobody is served before it; nil: everybody may be
	next         *Ring // who found the share spent first
	refs         int   // rings of the user
	endFn        func()
}

// Share is that of a user; Unshare is for each call.
func (w *Worker) Share(uid uint32) *Share {
	s := w.shares[uid]
	if s == nil {
		s = &Share{}
		s.endFn = s.end
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

// May reports whether descriptors of r may be taken now. A reactor asks all that have
// some in the same order each turn.
func (s *Share) May(w *Worker, r *Ring) bool {
	s.begin(w)
	if s.first == r {
		s.first = nil
	}
	if s.first != nil {
		return false
	}
	if s.Spent() {
		if s.next == nil {
			s.next = r
		}
		return false
	}
	return true
}

// MayLook counts that a message of a client is about to be looked for; false: not in
// this turn.
func (s *Share) MayLook(w *Worker) bool {
	s.begin(w)
	if s.looks >= shareLooks {
		return false
	}
	s.looks++
	return true
}

// begin has the turn end, once.
func (s *Share) begin(w *Worker) {
	if !s.begun {
		s.begun = true
		w.thread.Defer(s.endFn)
	}
}

// Post counts a descriptor that was taken.
func (s *Share) Post() { s.posts++ }

// Copied counts bytes that were copied at once.
func (s *Share) Copied(n int) { s.bytes += n }

// Spent reports whether a turn has no more room for what this user sends.
func (s *Share) Spent() bool { return s.posts >= sharePosts || s.bytes >= shareBytes }

// end ends the turn. Who was to be the first of it and did not come has gone.
func (s *Share) end() {
	s.posts, s.bytes, s.looks, s.begun = 0, 0, 0, false
	s.first, s.next = s.next, nil
}
