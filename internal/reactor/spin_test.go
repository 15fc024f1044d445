package reactor

import (
	"testing"
	"time"
)

// TestSpinFor: with one processor nothing can come while it is looked for.
func TestSpinFor(t *testing.T) {
	for _, asked := range []time.Duration{-1, 0, DefaultSpin} {
		var s spin
		s.init(spinFor(asked, 1))
		s.found(0)
		if s.slept(time.Microsecond); s.budget != 0 {
			t.Errorf("%v, one processor: a spin of %v", asked, s.budget)
		}
		if got := spinFor(asked, 2); got != asked {
			t.Errorf("%v, two processors: %v", asked, got)
		}
	}
}

// TestSpinAdapts plays kinds of traffic to the governor: what comes is told by
// the gaps between pieces of work.
func TestSpinAdapts(t *testing.T) {
	play := func(gap time.Duration, n int) (share float64, s spin) {
		s.init(0)
		var spent, all time.Duration
		for range n {
			if look := s.look; gap <= look {
				spent += gap
				s.found(gap)
			} else {
				spent += look
				s.slept(gap)
			}
			all += gap
		}
		return float64(spent) / float64(all), s
	}
	for _, c := range []struct {
		name     string
		gap      time.Duration
		from, to float64 // share of the time spent spinning
	}{
		{"ping-pong", 7 * time.Microsecond, 1, 1},
		{"a trickle too fast to ignore", 100 * time.Microsecond, 0.01, 0.1},
		{"heartbeats", 2500 * time.Microsecond, 0, 0.0001},
		{"nothing", time.Minute, 0, 1e-6},
	} {
		if share, _ := play(c.gap, 10000); share < c.from || share > c.to {
			t.Errorf("%s, every %v: %.4f of the time spent spinning, %v to %v is right", c.name, c.gap, share, c.from, c.to)
		}
	}
	// Two that sleep and answer each other find out that spinning pays, from
	// whatever state they are in.
	for idle := range 200 {
		var a, b spin
		a.init(0)
		b.init(0)
		for range idle {
			a.slept(80 * time.Microsecond)
		}
		for range 3 * idle {
			b.slept(80 * time.Microsecond)
		}
		hops := 0
		for ; hops < 5000 && (a.fails > 0 || b.fails > 0); hops++ {
			if a.budget > 0 && b.budget > 0 {
				a.found(0)
				b.found(0)
				break
			}
			a.slept(80 * time.Microsecond)
			b.slept(80 * time.Microsecond)
			if hops%9 == 0 { // they do not keep step
				b.slept(80 * time.Microsecond)
			}
		}
		if hops >= 2000 {
			t.Fatalf("after %d hops asleep two partners still do not spin together %d hops later", idle, hops)
		}
	}
	// Where somebody computes, and every yield is lost to them, hardly any
	// spin is begun; where that is an accident, hardly any is left out.
	var s spin
	s.init(0)
	spins := 0
	for range 10000 {
		if s.budget > 0 {
			spins++
			s.lost()
		}
		s.slept(80 * time.Microsecond)
	}
	if spins > 50 {
		t.Errorf("%d spins in 10000 idle moments although each is lost", spins)
	}
	s, spins = spin{}, 0
	s.init(0)
	for i := range 10000 {
		switch {
		case i%500 == 0 && s.budget > 0:
			s.lost()
			s.slept(80 * time.Microsecond)
		case s.budget > 0:
			spins++
			s.found(0)
		default:
			s.slept(80 * time.Microsecond)
		}
	}
	if spins < 9900 {
		t.Errorf("%d spins in 10000 idle moments although few are lost", spins)
	}
	var off spin
	off.init(-1)
	off.found(0)
	off.slept(time.Microsecond)
	if off.budget != 0 {
		t.Error("spinning although it is off")
	}
}

// TestSpinSteps holds each step of the governor at its edges: how long the next spin is after what was found, lost and slept.
func TestSpinSteps(t *testing.T) {
	const most = 160 * time.Microsecond
	const near = 2*most + nearWakes
	begin := func() (s spin) {
		s.init(most)
		return s
	}
	is := func(s *spin, what string, want time.Duration) {
		t.Helper()
		if s.budget != want {
			t.Errorf("%s: the next spin is %v, want %v", what, s.budget, want)
		}
	}
	s := begin()
	is(&s, "at first", most)

	// Success in a row lengthens the spin; one sleep takes the length back, and the row begins anew.
	for range 2 {
		for i := 1; i < eager; i++ {
			s.found(0)
			is(&s, "too few finds", most)
		}
		s.found(0)
		is(&s, "enough finds", longer*most)
		s.slept(near)
		is(&s, "a sleep behind many finds", most)
	}

	// Work that came late halves the spin, but the first time, down to nothing; work that came near
	// brings all of it back.
	s = begin()
	for _, want := range []time.Duration{most, most / 2, most / 4, most / 8, most / 16, 0, 0} {
		s.slept(near + 1)
		is(&s, "work that came late", want)
	}
	s.slept(near)
	is(&s, "work that came near", most)
	for range 100 { // a question after a pause, and its answer
		s.slept(near + 1)
		is(&s, "the first that came late", most)
		s.found(0)
	}
	s.slept(near + 1)
	s.slept(near + 1)
	is(&s, "the second that came late", most/2)
	s.found(0)
	is(&s, "a find in a spin that was halved", most)
	if s.penalty != 0 {
		t.Errorf("a penalty of %d although no turn was lost", s.penalty)
	}
	for range eager {
		s.found(0)
	}
	s.slept(near + 1)
	is(&s, "work that came late behind many finds", most)
	s.slept(near + 1)
	is(&s, "more work that came late", most/2)

	// Near work in spite of spinning is tried in short runs once patience is out; a find gives all of the patience back.
	s = begin()
	for range 2 {
		for i := 1; i < patience+2*runEvery; i++ {
			s.slept(near)
			want := most
			if i >= patience && (i-patience)%runEvery >= runLen {
				want = 0
			}
			is(&s, "near work in vain", want)
		}
		s.found(0)
		if s.fails != 0 {
			t.Errorf("%d sleeps in vain are counted behind a find", s.fails)
		}
	}

	// A yield is lost if the work it brought took less than a sixteenth of it.
	for _, c := range []struct {
		away, work time.Duration
		lost       bool
	}{
		{3 * time.Millisecond, 0, true},
		{3 * time.Millisecond, 187 * time.Microsecond, true},
		{3 * time.Millisecond, 188 * time.Microsecond, false},
		{3 * time.Millisecond, 5 * time.Millisecond, false},
	} {
		s = begin()
		if s.away(c.away, c.work); (s.shun > 0) != c.lost {
			t.Errorf("away for %v with work for %v behind it: lost %v, want %v", c.away, c.work, s.shun > 0, c.lost)
		}
	}

	// A lost turn makes as many idle moments begin with sleep as the penalty says, which doubles up to its bound.
	s = begin()
	for want := minPenalty; want <= 4*maxPenalty; want *= 2 {
		s.lost()
		is(&s, "a lost turn", 0)
		if s.penalty != min(want, maxPenalty) || s.shun != s.penalty {
			t.Fatalf("the penalty is %d with %d moments to shun, want %d", s.penalty, s.shun, min(want, maxPenalty))
		}
	}
	for left := s.shun - 1; left > 0; left-- {
		s.slept(near)
		is(&s, "shunned", 0)
	}
	before := s.penalty
	s.found(0) // a look without a spin that hit: it does not end the penalty
	is(&s, "work that was there in the last shunned moment", 0)
	if s.penalty != before-1 {
		t.Errorf("the penalty is %d behind a find, and was %d", s.penalty, before)
	}
	s.slept(near)
	is(&s, "behind the penalty", most)
	if s.fails != 0 {
		t.Errorf("%d sleeps in vain are counted of those that were shunned", s.fails)
	}
}

// TestSpinForAnswers plays questions that come after pauses: the moment between a question and its answer is
// looked through, and no other longer than before.
func TestSpinForAnswers(t *testing.T) {
	const pause, answer, step = time.Millisecond, 150 * time.Microsecond, 5 * time.Microsecond
	for _, c := range []struct {
		name  string
		gaps  []time.Duration
		looks bool // through answers
	}{
		{"question, answer", []time.Duration{pause, answer}, true},
		{"with steps between", []time.Duration{pause, step, answer, step}, true},
		{"a question and two answers", []time.Duration{pause, answer, answer}, true},
		{"no pauses", []time.Duration{answer}, false},
		{"pauses alone", []time.Duration{pause}, false},
		{"a step after each pause", []time.Duration{pause, step}, false},
		{"answers that take too long to look on", []time.Duration{pause, longer*answerIn*DefaultSpin + 1}, false},
	} {
		var s spin
		s.init(0)
		answers, found := 0, 0
		for i := range 40 * len(c.gaps) {
			gap, look := c.gaps[i%len(c.gaps)], s.look
			if i >= 20*len(c.gaps) {
				if gap != answer && look > DefaultSpin {
					t.Errorf("%s: %v is spent on a gap of %v", c.name, look, gap)
				}
				if gap == answer {
					if answers++; gap <= look {
						found++
					}
				}
			}
			if gap <= look {
				s.found(gap)
			} else {
				s.slept(gap)
			}
		}
		if c.looks && found != answers || !c.looks && found > 0 {
			t.Errorf("%s: %d of %d answers were found", c.name, found, answers)
		}
	}
	// Answers that come a little too late are looked through to now and then.
	var late spin
	late.init(0)
	vain := 0
	for range 100 {
		late.slept(pause)
		if late.look > DefaultSpin {
			vain++
		}
		late.slept(longer*DefaultSpin + 1)
		if late.look > DefaultSpin {
			t.Fatalf("%v is spent on a pause", late.look)
		}
	}
	if vain < 10 || vain > 35 {
		t.Errorf("%d of 100 late answers are waited for", vain)
	}
	// Answers that stop coming are expected a few times more; a lost turn goes before all.
	var s spin
	s.init(0)
	for range 20 {
		s.slept(pause)
		s.found(answer)
	}
	s.slept(pause)
	if s.look != longer*DefaultSpin {
		t.Fatalf("%v is spent on an answer", s.look)
	}
	s.lost()
	if s.look != 0 {
		t.Errorf("%v is spent behind a lost turn", s.look)
	}
	s.shun, s.look = 0, longer*DefaultSpin
	for i := 0; s.look > s.max; i++ {
		if s.slept(pause); i > 5 {
			t.Fatal("answers are expected where only pauses come")
		}
	}
}
