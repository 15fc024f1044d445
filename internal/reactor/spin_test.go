package reactor

import (
	"testing"
	"time"
)

// TestSpinAdapts plays kinds of traffic to the governor: what comes is told by
// the gaps between pieces of work.
func TestSpinAdapts(t *testing.T) {
	play := func(gap time.Duration, n int) (share float64, s spin) {
		s.init(0)
		var spent, all time.Duration
		for range n {
			if gap <= s.budget {
				spent += gap
				s.found()
			} else {
				spent += s.budget
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
				a.found()
				b.found()
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
			s.found()
		default:
			s.slept(80 * time.Microsecond)
		}
	}
	if spins < 9900 {
		t.Errorf("%d spins in 10000 idle moments although few are lost", spins)
	}
	var off spin
	off.init(-1)
	off.found()
	off.slept(time.Microsecond)
	if off.budget != 0 {
		t.Error("spinning although it is off")
	}
}
