package client

import (
	"testing"
	"time"
)

// TestBusyFlow says which flows are offered a pair.
func TestBusyFlow(t *testing.T) {
	const ms = time.Millisecond
	run := func(every time.Duration, n int, for_ time.Duration) (offers int) {
		b := busyFlow{}
		for now := time.Second; now < time.Second+for_; now += every {
			if b.posted(now, n) {
				offers++
			}
		}
		return offers
	}
	for _, c := range []struct {
		what   string
		every  time.Duration
		n      int
		for_   time.Duration
		offers int
	}{
		{"a datagram each millisecond", ms, 1, 5 * time.Second, 0},
		{"ten each millisecond", ms, 10, 900 * ms, 1},
		{"trains of a thousand each 30 ms", 30 * ms, 1000, 900 * ms, 1},
		{"a train of a thousand each 300 ms", 300 * ms, 1000, 5 * time.Second, 0},
		{"one burst", 10 * time.Microsecond, 1, 40 * ms, 0},
		{"ten each millisecond, for long: again when a second has passed", ms, 10, 3500 * ms, 4},
	} {
		if got := run(c.every, c.n, c.for_); got != c.offers {
			t.Errorf("%s: %d offers, want %d", c.what, got, c.offers)
		}
	}
}
