package reactor

import "time"

// How long to yield before sleeping. A wake-up across processors costs 20 µs
// and more, a relay whose loops look on for so long is four times faster than
// one whose loops sleep at once. But a daemon that hears a heartbeat now and then
// must not spend that on each. So the spin is bought by success, as the
// kernel's haltpoll governor does it: work that came soon after falling asleep
// brings the whole spin back, work that came late halves it.
//
// Two reactors that answer each other and both sleep at once see gaps of two
// wake-ups, longer than a spin: near must be above that, or they would never
// find out that spinning together is four times faster. Where the gaps are near
// and spinning fails all the same (a steady trickle every 100 µs), it is given up
// after patience failures and tried again in short runs, which two partners
// meet in within a fraction of a second.
//
// A yield gives the processor to whoever wants it, and somebody who computes
// keeps it for a slice of milliseconds, while a thread that sleeps is let in
// front when work arrives. So an account is kept of what spinning wins, a wake-up
// each time it finds work, and loses, when work was found only after the
// processor came back. Who is in debt sleeps at once for a while, a longer one
// each time.
type spin struct {
	max, near time.Duration
	budget    time.Duration // for the next idle moment
	fails     int           // sleeps in a row after which work came near, in spite of spinning
	credit    time.Duration // won, less lost
	shun      int           // idle moments still to begin with sleep
	penalty   int           // how many that were the last time
}

const (
	nearWakes = 150 * time.Microsecond // above the spin: two wake-ups and the work between
	patience  = 32
	runEvery  = 64 // once out of patience: of so many sleeps
	runLen    = 8  // so many begin with a spin

	wakeUp     = 30 * time.Microsecond  // what finding work awake is worth
	lostTurn   = 100 * time.Microsecond // between two turns: somebody else computed
	mostCredit = 4 * time.Millisecond
	newCredit  = time.Millisecond
	minPenalty = 16
	maxPenalty = 256
)

func (s *spin) init(d time.Duration) {
	if d == 0 {
		d = DefaultSpin
	}
	s.max = max(d, 0)
	s.near = 2*s.max + nearWakes
	s.budget, s.credit = s.max, newCredit
}

// found: work came while spinning, turn after the look before.
func (s *spin) found(turn time.Duration) {
	if turn > lostTurn {
		s.lost(turn)
		return
	}
	s.fails = 0
	if s.shun == 0 {
		s.budget = s.max
	}
	if s.credit += wakeUp; s.credit >= mostCredit {
		s.credit, s.penalty = mostCredit, 0
	}
}

// lost: the work had been there for half of that time on average.
func (s *spin) lost(turn time.Duration) {
	if s.credit -= turn / 2; s.credit < 0 {
		s.penalty = min(max(2*s.penalty, minPenalty), maxPenalty)
		s.shun, s.budget, s.credit = s.penalty, 0, newCredit
	}
}

// slept: the spin was in vain, and work came gap after the last.
func (s *spin) slept(gap time.Duration) {
	if s.shun > 0 {
		if s.shun--; s.shun == 0 {
			s.fails, s.budget = 0, s.max
		}
		return
	}
	if gap > s.near {
		if s.budget /= 2; s.budget < s.max/16 {
			s.budget = 0
		}
		return
	}
	s.fails++
	s.budget = s.max
	if s.fails >= patience && (s.fails-patience)%runEvery >= runLen {
		s.budget = 0
	}
}
