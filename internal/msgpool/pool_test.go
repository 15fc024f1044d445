package msgpool

import "testing"

func TestPool(t *testing.T) {
	p := &pool{}
	for _, n := range []int{0, 1, 127, 128, 129, 4096, 4097, 1 << 20, 1<<22 - 1, 1 << 22, 1<<22 + 1} {
		b := p.Get(n)
		if len(*b) != n {
			t.Errorf("Get(%d) has %d bytes", n, len(*b))
		}
		*b = (*b)[:0]
		p.Put(b)
		if b = p.Get(n); len(*b) != n {
			t.Errorf("second Get(%d) has %d bytes", n, len(*b))
		}
	}
	odd := make([]byte, 100)
	p.Put(&odd) // not ours: must not come back too small
	if b := p.Get(128); len(*b) != 128 {
		t.Errorf("%d bytes", len(*b))
	}
}
