package reactor

import (
	"slices"
	"testing"
)

// TestQueueRuns: a turn runs what is there, in order, and says whether that was anything;
// what is added meanwhile waits for the next one, and nothing of a function is kept.
func TestQueueRuns(t *testing.T) {
	var q queue
	var ran []int
	put := func(n int) {
		if !q.put(task{f: func() { ran = append(ran, n) }}) {
			t.Fatalf("function %d was not taken", n)
		}
	}
	if q.run() {
		t.Error("nothing was run, and said to be something")
	}
	for n := range 3 {
		for i := range n + 1 {
			put(10*n + i)
		}
		q.put(task{f: func() { put(10*n + 9) }})
		if !q.posted.Load() || !q.run() {
			t.Errorf("round %d: something was run, and said to be nothing", n)
		}
		if len(ran) != n+1 || !q.posted.Load() {
			t.Errorf("round %d: %v has run in the first turn", n, ran)
		}
		if !q.run() || q.posted.Load() {
			t.Errorf("round %d: one function is nothing", n)
		}
		if want := []int{10 * n, 10*n + 1, 10*n + 2}[:n+1]; !slices.Equal(ran, append(want, 10*n+9)) {
			t.Errorf("round %d: %v has run", n, ran)
		}
		if q.run() {
			t.Errorf("round %d: something is run again", n)
		}
		for _, kept := range [][]task{q.funcs[:cap(q.funcs)], q.running[:cap(q.running)]} {
			if slices.ContainsFunc(kept, func(f task) bool { return f.f != nil }) {
				t.Errorf("round %d: a function that has run is kept", n)
			}
		}
		ran = ran[:0]
	}
	put(1)
	if q.close(); !slices.Equal(ran, []int{1}) {
		t.Errorf("closed: %v has run", ran)
	}
	if q.put(task{f: func() {}}) {
		t.Error("a closed queue takes a function")
	}
}

// TestQueueAgain: what a panic kept from being run is put in front of what has come since;
// when it was the last one, or none, there is nothing to put back.
func TestQueueAgain(t *testing.T) {
	var ran []int
	fill := func(at int) *queue {
		q := &queue{at: at}
		for i := range 3 {
			q.running = append(q.running, task{f: func() { ran = append(ran, i) }})
		}
		q.running = slices.Clip(q.running)
		q.funcs = []task{{f: func() { ran = append(ran, 10) }}}
		return q
	}
	for at, want := range [][]int{{1, 2, 10}, {2, 10}, {10}, {10}, {10}} {
		q := fill(at)
		q.again()
		if posted := q.posted.Load(); posted != (at < 3) {
			t.Errorf("function %d of three has panicked: posted %v", at, posted)
		}
		ran = nil
		if q.run(); !slices.Equal(ran, want) {
			t.Errorf("function %d of three has panicked: %v has run then, want %v", at, ran, want)
		}
	}
}
