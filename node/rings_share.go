package node

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

// turnShare is what was taken of a user's rings in the turn under way. It belongs to
// a worker and is owned by its thread.
type turnShare struct {
	posts, bytes int
	looks        int       // for messages; they have no part in the order below
	begun        bool      // end is to be called
	first        *ringSock // nobody is served before it; nil: everybody may be
	next         *ringSock // who found the share spent first
	refs         int       // rings of the user
	endFn        func()
}

// share is that of a user; unshare is for each call.
func (w *worker) share(uid uint32) *turnShare {
	s := w.shares[uid]
	if s == nil {
		s = &turnShare{}
		s.endFn = s.end
		w.shares[uid] = s
	}
	s.refs++
	return s
}

func (w *worker) unshare(uid uint32) {
	if s := w.shares[uid]; s.refs > 1 {
		s.refs--
	} else {
		delete(w.shares, uid)
	}
}

// may reports whether descriptors of r may be taken now. A reactor asks all that have
// some in the same order each turn.
func (s *turnShare) may(w *worker, r *ringSock) bool {
	s.begin(w)
	if s.first == r {
		s.first = nil
	}
	if s.first != nil {
		return false
	}
	if s.spent() {
		if s.next == nil {
			s.next = r
		}
		return false
	}
	return true
}

// mayLook counts that a message of a client is about to be looked for; false: not in
// this turn.
func (s *turnShare) mayLook(w *worker) bool {
	s.begin(w)
	if s.looks >= shareLooks {
		return false
	}
	s.looks++
	return true
}

// begin has the turn end, once.
func (s *turnShare) begin(w *worker) {
	if !s.begun {
		s.begun = true
		w.Defer(s.endFn)
	}
}

func (s *turnShare) spent() bool { return s.posts >= sharePosts || s.bytes >= shareBytes }

// end ends the turn. Who was to be the first of it and did not come has gone.
func (s *turnShare) end() {
	s.posts, s.bytes, s.looks, s.begun = 0, 0, 0, false
	s.first, s.next = s.next, nil
}
