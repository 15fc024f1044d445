package reactor

import (
	"testing"
	"time"
)

const us = time.Microsecond

// TestSpinAdapts plays kinds of traffic to the governor: what comes is told by
// the gaps between pieces of work.
func TestSpinAdapts(t *testing.T) {
	play := func(gap time.Duration, n int) (share float64, s spin) {
		s.init(0)
		var spent, all time.Duration
		for range n {
			if gap <= s.budget {
				spent += gap
				s.found(us)
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
				a.found(us)
				b.found(us)
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
	// Where somebody computes and the work waits for the end of their slice,
	// hardly any spin is begun; where that happens now and then, and spinning wins
	// more than it loses, hardly any is left out.
	for _, c := range []struct {
		every    int // of so many spins one is lost
		from, to int // spins in 10000 idle moments
	}{{1, 0, 200}, {5, 0, 1000}, {200, 9000, 10000}} {
		var s spin
		s.init(0)
		spins := 0
		for range 10000 {
			switch {
			case s.budget == 0:
				s.slept(80 * us)
			case spins%c.every == 0:
				spins++
				s.found(3000 * us)
			default:
				spins++
				s.found(us)
			}
		}
		if spins < c.from || spins > c.to {
			t.Errorf("one of %d spins is lost: %d spins in 10000 idle moments", c.every, spins)
		}
	}
	var off spin
	off.init(-1)
	off.found(us)
	off.slept(time.Microsecond)
	if off.budget != 0 {
		t.Error("spinning although it is off")
	}
}
