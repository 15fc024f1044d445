package tcp

import (
	"sync"
	"sync/atomic"
	"testing"
)

// watched counts what it is told of progress.
type watched struct {
	*sink
	progress atomic.Int64
}

func (w *watched) Progress() { w.here(); w.progress.Add(1) }

// TestProgressIsProgress: a link to a peer that takes nothing makes none, however often
// its socket is tried: whoever waits for progress gives such a peer up. Each try of which
// the socket takes a part is told.
func TestProgressIsProgress(t *testing.T) {
	x, y := pairOf(t, newProvider(t))
	w := &watched{sink: x}
	x.l.Start(w)
	reads := sync.OnceFunc(func() { y.l.Start(y) })
	defer reads() // what never started never ends
	// left is what the link still has to write.
	left := func() int {
		x.l.mu.Lock()
		defer x.l.mu.Unlock()
		if x.l.out == nil {
			return 0
		}
		return x.l.out.Left()
	}
	// fill sends until something is left, which may take a while: buffers grow.
	fill := func() {
		for range 10000 {
			if left() > 0 {
				return
			}
			if _, err := x.send(60, 1000); err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("a peer that reads nothing takes everything")
	}
	idle := 0
	for range 100 {
		fill()
		var taken int
		var told int64
		x.on(func() {
			before, was := w.progress.Load(), left() // the reactor may have been faster, and taken all
			x.l.flush()
			taken, told = was-left(), w.progress.Load()-before
		})
		if taken == 0 {
			idle++
		}
		// The end of a batch is told by Written instead.
		if left() > 0 && (taken > 0) != (told == 1) || told > 1 {
			t.Fatalf("the socket took %d bytes, and progress was told %d times", taken, told)
		}
	}
	if idle == 0 {
		t.Error("the socket took something each time")
	}
	reads()
	eventually(t, "the rest", func() bool { return left() == 0 })
}

// on runs f on the link's thread.
func (s *sink) on(f func()) {
	done := make(chan struct{})
	s.l.Reactor().Do(func() { defer close(done); f() })
	<-done
}
