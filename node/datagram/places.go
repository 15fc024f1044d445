package datagram

import (
	"runtime"
	"sync"
)

// Go's scheduler runs so many goroutines at a time. A reactor comes back from a sleep in
// the kernel as one of those that are ready, and waits for a place behind them if there is
// none. It has to win one back all the time, and the collector and gRPC must get on while reactors
// are busy: so there are two places beside the reactors, even on two processors. With hundreds of
// goroutines, which clients have with gRPC, there are two more: reactors wait 10 ms in a second then
// instead of 17, and never 10 ms at once. Without that crowd they would cost a tenth of the
// throughput at 1 KiB, in threads that look for work (docs/performance-log.md, 38).
const (
	placesBeside  = 2
	placesCrowded = 4
	crowd         = 256 // goroutines; a daemon with clients on rings alone has some dozens
)

// places are those of the whole process.
var places struct {
	mu        sync.Mutex
	reactors  int  // of all its nodes; guarded by mu
	crowded   bool // guarded by mu
	unchanged int  // GOMAXPROCS before anybody was here; guarded by mu, 0: nobody was
}

// addReactors makes places for n more reactors, or for -n fewer.
func addReactors(n int) {
	places.mu.Lock()
	defer places.mu.Unlock()
	places.reactors += n
	setPlaces()
}

// Crowd makes places for so many goroutines. It is for the process as a whole.
func Crowd(goroutines int) {
	places.mu.Lock()
	defer places.mu.Unlock()
	places.crowded = crowded(places.crowded, goroutines)
	setPlaces()
}

// crowded tells whether there is a crowd, not to and fro about its edge: who changes that stops
// all goroutines for a moment.
func crowded(before bool, goroutines int) bool {
	return goroutines > crowd || before && goroutines > crowd/2
}

// setPlaces runs with places.mu held.
func setPlaces() {
	if places.unchanged == 0 {
		places.unchanged = runtime.GOMAXPROCS(0)
	}
	n := places.reactors + placesBeside
	if places.crowded {
		n = places.reactors + placesCrowded
	}
	if n = max(n, places.unchanged); n != runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}
