package reactor

import "time"

// How long to yield before sleeping. A wake-up across processors costs 20 µs
// and more, a relay whose loops look on for so long is four times faster than
// one whose loops sleep at once. But a daemon that hears a heartbeat now and then
// must not spend that on each. So the spin is bought by success, as the
// kernel's haltpoll governor does it: work that came soon after falling asleep
// brings the whole spin back, work that came late halves it, but the first time: a question
// after a pause is followed by its answer.
//
// Two reactors that answer each other and both sleep at once see gaps of two
// wake-ups, longer than a spin: near must be above that, or they would never
// find out that spinning together is four times faster. Where the gaps are near
// and spinning fails all the same (a steady trickle every 100 µs), it is given up
// after patience failures and tried again in short runs, which two partners
// meet in within a fraction of a second.
//
// While every idle moment ends with work the spin may be longer, because one loop that
// sleeps costs all its partners several wake-ups: a moment that another process takes from
// one of them must not put all to sleep.
//
// A yield that does not come back soon has given the processor to a computing thread.
// Spinning is then the worst choice: a sleeping thread is let in front when work arrives, a
// yielding one waits for the end of the other's slice. So the next idle moments begin with
// sleep, more of them each time. But where three that share a processor are the two ends of a
// flow and its other daemon, what the others did meanwhile is work for this one. To sleep is
// what costs them then: each of its wake-ups takes the processor from who fills its ring, and
// a flow moves in small pieces, at half its rate, while a fourth thread looks on by itself on
// the other processor. So a yield is lost only if what it brought is soon done.
//
// An answer that comes a little later than a spin ends is foreseen by what the moments before it were, as a processor
// foresees branches. A question after a pause wakes this reactor; its answer, for which others must be woken
// first, comes some 100 µs later; then there is a pause again. To sleep until the answer costs all who are on
// its way a wake-up more. Only moments near a pause are looked at: where all work is that far apart, who
// looks on for each would never sleep.
type spin struct {
	max, near time.Duration
	budget    time.Duration // for the next idle moment, but for an answer
	look      time.Duration // for the next idle moment
	finds     int           // idle moments in a row that ended while spinning
	late      int           // sleeps in a row after which work came late
	fails     int           // sleeps in a row after which work came near, in spite of spinning
	shun      int           // idle moments still to begin with sleep
	penalty   int           // how many that were the last time

	last, before uint8                // kinds of the last two idle moments
	sure         [kinds * kinds]uint8 // by these: how likely the next brings an answer
}

// The kinds of idle moments: those that a spin finds the end of, those that an answer ends, and pauses.
const (
	short = iota
	answer
	pause
	kinds
)

const (
	nearWakes = 150 * time.Microsecond // above the spin: two wake-ups and the work between
	patience  = 32
	eager     = 8  // finds in a row, and the spin is
	longer    = 4  // times as long
	runEvery  = 64 // once out of patience: of so many sleeps
	runLen    = 8  // so many begin with a spin

	lostTurn   = 100 * time.Microsecond // between two yields: another thread had the processor
	worthTurn  = 16                     // work for so little of that time, and it has computed
	minPenalty = 2
	maxPenalty = 1024

	answerIn  = 2 * longer // spins: it may have been slept for, and then there are wake-ups in it
	expectAt  = 4          // of sure
	surest    = 7
	surprised = 2 // a pause takes so much of it
)

// spinFor is how long to yield on a machine of so many processors, of what Options asks for.
// On one alone nothing can come while somebody looks: whoever is to bring it gets the
// processor, by a yield or by a sleep, and yields only make each of those that look take its
// turn between any two steps of a round trip.
func spinFor(asked time.Duration, processors int) time.Duration {
	if processors == 1 {
		return -1
	}
	return asked
}

func (s *spin) init(d time.Duration) {
	if d == 0 {
		d = DefaultSpin
	}
	s.max = max(d, 0)
	s.near = 2*s.max + nearWakes
	s.budget, s.look = s.max, s.max
}

// found records that work came while spinning, gap after the last.
func (s *spin) found(gap time.Duration) {
	s.fails, s.late = 0, 0
	if s.penalty > 0 {
		s.penalty--
	}
	s.finds++
	switch {
	case s.shun > 0:
		s.budget = 0
	case s.finds >= eager:
		s.budget = longer * s.max
	default:
		s.budget = s.max
	}
	// The ordinary case, between two datagrams of many, calls nothing.
	if s.look = s.budget; gap > s.max || s.last == pause {
		s.foresee(gap)
	} else {
		s.last, s.before = short, s.last
	}
}

// foresee records an idle moment, and looks on in the next one if that is likely to bring an answer.
func (s *spin) foresee(gap time.Duration) {
	sure, kind := &s.sure[s.last*kinds+s.before], uint8(short)
	switch {
	case gap > answerIn*s.max:
		kind = pause
		*sure -= min(*sure, surprised)
	case gap > s.max:
		kind = answer
		*sure = min(*sure+1, surest)
	}
	s.last, s.before = kind, s.last
	if (kind == pause || s.before == pause) && s.shun == 0 && s.sure[kind*kinds+s.before] >= expectAt {
		s.look = max(s.look, longer*s.max)
	}
}

// away records that a yield took longer than all that spinning can win, and for how long there
// was work afterwards.
func (s *spin) away(d, work time.Duration) {
	if worthTurn*work < d {
		s.lost()
	}
}

// lost records that another thread computed during a yield.
func (s *spin) lost() {
	s.finds = 0
	s.penalty = min(max(2*s.penalty, minPenalty), maxPenalty)
	s.shun, s.budget, s.look = s.penalty, 0, 0
}

// slept records that the spin was in vain, and that work came gap after the last.
func (s *spin) slept(gap time.Duration) {
	if s.look > s.max { // so an answer comes too late here
		s.sure[s.last*kinds+s.before] = 0
	}
	s.vain(gap)
	s.look = s.budget
	s.foresee(gap)
}

// vain sets the budget behind a spin that was in vain.
func (s *spin) vain(gap time.Duration) {
	if s.finds = 0; s.budget > s.max {
		s.budget = s.max
	}
	if s.shun > 0 {
		if s.shun--; s.shun == 0 {
			s.fails, s.budget = 0, s.max
		}
		return
	}
	if gap > s.near {
		if s.late++; s.late > 1 {
			if s.budget /= 2; s.budget < s.max/16 {
				s.budget = 0
			}
		}
		return
	}
	s.late = 0
	s.fails++
	s.budget = s.max
	if s.fails >= patience && (s.fails-patience)%runEvery >= runLen {
		s.budget = 0
	}
}
