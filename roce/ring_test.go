package roce

import "testing"

// TestRing keeps a ring full to each degree while it goes around more than once.
func TestRing(t *testing.T) {
	const size = 3
	for held := range size {
		r := newRing[int](size)
		for i := range held {
			r.push(i)
		}
		for i := range 3 * size {
			r.push(held + i)
			if got := *r.at(held); got != held+i {
				t.Fatalf("with %d held the youngest is %d, want %d", held, got, held+i)
			}
			if got := r.pop(); got != i {
				t.Fatalf("with %d held %d came out, want %d", held, got, i)
			}
		}
		if r.n != held {
			t.Errorf("%d are left, want %d", r.n, held)
		}
	}
}
