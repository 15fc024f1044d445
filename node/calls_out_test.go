package node

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
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
// whatever its size: small buffers are given back to nobody.
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

// TestLongLivedStream: a stream that has carried many datagrams, each in a message of its
// own, holds no more of its user's account than after the first ones.
func TestLongLivedStream(t *testing.T) {
	n, cfg := startOne(t)
	a, b := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0)), mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	credit := &rdsdv1.Credit{}
	credit.SetDatagrams(1 << 30)
	credit.SetBytes(1 << 38)
	m := &rdsdv1.ClientMessage{}
	m.SetCredit(credit)
	if err := b.stream.Send(m); err != nil {
		t.Fatal(err)
	}
	const rounds = 6000
	var first int64
	for i := range uint64(rounds) {
		for _, size := range []int{20, 3000} {
			m := &rdsdv1.ClientMessage{}
			m.SetSend(batchOf(i, b.local, strings.Repeat("x", size)))
			if err := a.stream.Send(m); err != nil {
				t.Fatal(err)
			}
			if _, err := a.stream.Recv(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		// What was received is settled when gRPC gives window for it again, each 64 KiB.
		if used := n.deps.Memory.Kinds()[quota.Calls].Used; i < rounds/10 {
			first = max(first, used)
		} else if used > first+64<<10 {
			t.Fatalf("%d bytes are charged after %d rounds, at most %d in the first %d", used, i, first, rounds/10)
		}
	}
}
