package datagram

import (
	"runtime"
	"testing"
)

func TestCrowded(t *testing.T) {
	now := false
	for i, c := range []struct {
		goroutines int
		want       bool
	}{{1, false}, {crowd, false}, {crowd + 1, true}, {crowd, true}, {crowd/2 + 1, true}, {crowd / 2, false}, {crowd, false}, {1 << 20, true}, {0, false}} {
		if now = crowded(now, c.goroutines); now != c.want {
			t.Errorf("step %d, %d goroutines: crowded is %v", i, c.goroutines, now)
		}
	}
}

// TestPlaces: reactors, and a crowd of goroutines, have as many places as they should; they are
// given back; and what the process had by itself is never taken.
func TestPlaces(t *testing.T) {
	addReactors(0)
	places.mu.Lock()
	before, own := places.reactors, places.unchanged
	places.mu.Unlock()
	if before != 0 {
		t.Fatalf("%d reactors are left of another test", before)
	}
	defer Crowd(0)
	for n := range 3 * max(own, 2) {
		addReactors(n)
		for _, c := range []struct{ goroutines, beside int }{{0, placesBeside}, {crowd + 1, placesCrowded}, {0, placesBeside}} {
			Crowd(c.goroutines)
			if got, want := runtime.GOMAXPROCS(0), max(own, n+c.beside); got != want {
				t.Errorf("%d reactors, %d goroutines: %d places, want %d", n, c.goroutines, got, want)
			}
		}
		addReactors(-n)
	}
}
