package roce

import "testing"

func TestPSN(t *testing.T) {
	const top, half = 1<<24 - 1, 1 << 23
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 1, 1}, {top, 1, 0}, {0, -1, top}, {top, 2, 1}, {half, half, 0}, {5, -10, top - 4}, {top, 1 << 24, top},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", c.p, c.n, got, c.want)
		}
		if n := c.want.Sub(c.p); n != (c.n+half)&top-half {
			t.Errorf("%#x.Sub(%#x) = %d, want %d", c.want, c.p, n, c.n)
		}
	}
	for _, c := range []struct {
		p, first PSN
		n        int
		want     bool
	}{
		{5, 5, 0, false}, {5, 5, 1, true}, {6, 5, 1, false}, {4, 5, 128, false},
		{0, top, 2, true}, {1, top, 2, false}, {top, top, 2, true}, {top - 1, top, 2, false}, {top, 0, top, false}, {top, 0, top + 1, true},
	} {
		if got := c.p.Within(c.first, c.n); got != c.want {
			t.Errorf("%#x.Within(%#x, %d) = %v", c.p, c.first, c.n, got)
		}
	}
}
