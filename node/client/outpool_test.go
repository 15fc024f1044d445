package client

import (
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/internal/quota"
)

// TestOutPoolSettled: what gRPC does not give back is settled when the stream
// is over, once, and what comes later changes nothing.
func TestOutPoolSettled(t *testing.T) {
	n := quota.New(1<<30, nil)
	a := n.Account(quota.User(1))
	defer a.Close()
	p := &outPool{account: a}
	for _, size := range []int{0, 1, 100, 1 << 20} { // the only one out
		b := p.Get(size)
		if p.Put(b); a.Used() != 0 || p.out.Load() != 0 {
			t.Errorf("%d bytes are charged and %d out when all are back", a.Used(), p.out.Load())
		}
	}
	back, late, lost := p.Get(2000), p.Get(5000), p.Get(9000)
	if want := int64(cap(*back) + cap(*late) + cap(*lost)); a.Used() != want {
		t.Errorf("%d bytes are charged, %d are out", a.Used(), want)
	}
	p.Put(back)
	if want := int64(cap(*late) + cap(*lost)); a.Used() != want {
		t.Errorf("%d bytes are charged, %d are out", a.Used(), want)
	}
	p.close()
	if a.Used() != 0 {
		t.Errorf("%d bytes are charged when the stream is over", a.Used())
	}
	p.Put(late)
	p.Put(p.Get(100))
	if a.Used() != 0 || n.Used() != 0 {
		t.Errorf("%d bytes are charged after it", a.Used())
	}
}

// TestOutBatchesArePaidBack: of a batch that gRPC has written nothing stays charged,
// whatever its size: small buffers are given back to Nobody.
func TestOutBatchesArePaidBack(t *testing.T) {
	n := quota.New(1<<30, nil)
	a := n.Account(quota.User(1))
	defer a.Close()
	p := &outPool{account: a}
	for size := 1; size <= 1<<20; size = size*3/2 + 1 {
		b := mem.NewBuffer(p.Get(size), p)
		b.Free()
		if a.Used() != 0 {
			t.Fatalf("%d bytes stay charged for a buffer of %d", a.Used(), size)
		}
	}
}
