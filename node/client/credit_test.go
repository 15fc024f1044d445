package client

import (
	"math"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// TestCreditIsAdded: a client has the credit that it has granted, up to a bound that no sum
// can pass.
func TestCreditIsAdded(t *testing.T) {
	s := &sockStream{creditN: 1, creditB: 10}
	for _, x := range []struct {
		n     uint32
		b     uint64
		wantN int64
		wantB int64
	}{
		{0, 0, 1, 10}, {2, 5, 3, 15}, {1, 0, 4, 15}, {0, 1, 4, 16},
		{math.MaxUint32, 1 << 39, 4 + math.MaxUint32, 16 + 1<<39},
		{0, math.MaxUint64, 4 + math.MaxUint32, maxCredit},
		{0, math.MaxUint64, 4 + math.MaxUint32, maxCredit},
	} {
		c := &rdsdv1.Credit{}
		c.SetDatagrams(x.n)
		c.SetBytes(x.b)
		if s.credit(c); s.creditN != x.wantN || s.creditB != x.wantB {
			t.Errorf("after %d datagrams, %d bytes: %d, %d; want %d, %d", x.n, x.b, s.creditN, s.creditB, x.wantN, x.wantB)
		}
	}
	s.creditN = maxCredit - 1
	c := &rdsdv1.Credit{}
	c.SetDatagrams(2)
	if s.credit(c); s.creditN != maxCredit {
		t.Errorf("%d datagrams, at most %d", s.creditN, int64(maxCredit))
	}
}
