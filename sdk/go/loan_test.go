package rdsd

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/mem"
)

// spoilPool spoils what is given back.
type spoilPool struct{ back int }

func (p *spoilPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

func (p *spoilPool) Put(b *[]byte) {
	p.back++
	for i := range *b {
		(*b)[i] = 0xdd
	}
}

// TestStreamLends: what a stream lends stays as it is until it is released, whatever
// comes meanwhile, in messages of every size; then its memory is used again.
func TestStreamLends(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx := testContext(t)
	borrow := func(ctx context.Context) (Datagram, Lease) {
		var into [1]Datagram
		n, l, err := s.Borrow(ctx, into[:])
		if n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return into[0], l
	}
	st.push(dgram("the first is read before anybody has borrowed"))
	_, l := borrow(ctx)
	l.Release()
	type loaned struct {
		d Datagram
		l Lease
		b byte
	}
	var out []loaned
	lent := 0
	for i := range 200 {
		b := byte(1 + i)
		st.push(Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{b}, 1+i*i)})
		d, l := borrow(ctx)
		if l.of != nil {
			lent++
		}
		out = append(out, loaned{d, l, b})
		for _, o := range out {
			if bytes.Count(o.d.Payload, []byte{o.b}) != len(o.d.Payload) {
				t.Fatalf("datagram %d of %d bytes has changed while %d was borrowed", o.b, len(o.d.Payload), b)
			}
		}
		if len(out) > 5 {
			out[i%5].l.Release()
			out = append(out[:i%5], out[i%5+1:]...)
		}
	}
	if lent < 190 {
		t.Errorf("%d of 200 were lent", lent)
	}
}

// TestLoans borrows, receives and releases in any order: what is lent and not
// released, and what was received, stays as it is, and a message that was only
// lent goes back to the pool once, after its last lease.
func TestLoans(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		pool := &spoilPool{}
		q := &recvQueue{}
		q.init(bindConfig{windowDatagrams: 1 << 20, windowBytes: 1 << 30})
		type got struct {
			l  Lease
			ds []Datagram
		}
		var lentOut, kept []got
		var all []*inBatch
		lastLeft := map[*inBatch]int{}
		receivedOf := map[*inBatch]bool{} // of which something was received
		number := byte(0)
		whole := func(g got) {
			for _, d := range g.ds {
				if len(d.Payload) == 0 || bytes.Count(d.Payload, d.Payload[:1]) != len(d.Payload) || d.Payload[0] == 0xdd {
					t.Fatalf("seed %d: a payload of %d bytes has changed: %x", seed, len(d.Payload), d.Payload)
				}
			}
		}
		take := func(how place) {
			into := make([]Datagram, 1+rnd.IntN(12))
			for i := range into {
				into[i].Payload = make([]byte, 0, 1100+rnd.IntN(30)) // for some it is enough
			}
			before := append([]*inBatch(nil), q.batches.all()...)
			n, l, _, _ := q.take(into, how)
			if how == ownMemory {
				sum := 0
				for _, b := range before {
					if sum < n {
						receivedOf[b] = true
					}
					sum += lastLeft[b]
				}
			}
			for _, b := range q.batches.all() {
				lastLeft[b] = b.left
			}
			g := got{l, into[:n]}
			whole(g)
			if how == inPlace {
				lentOut = append(lentOut, g)
			} else {
				kept = append(kept, g)
			}
		}
		for range 300 {
			switch rnd.IntN(5) {
			case 0, 1: // a message comes
				data := pool.Get(0)
				b := &inBatch{}
				for range 1 + rnd.IntN(6) {
					number = number%200 + 1
					n := 1100 + rnd.IntN(30) // mem.Buffer does not pool less than 1 KiB
					*data = append(*data, bytes.Repeat([]byte{number}, n)...)
					b.lengths = binary.AppendUvarint(b.lengths, uint64(n))
					b.left++
				}
				b.payload, b.mem = *data, mem.NewBuffer(data, pool)
				b.one[0] = peerAddr
				b.sources = b.one[:]
				lastLeft[b] = b.left
				all = append(all, b)
				q.batches.push(b)
				q.n += b.left
			case 2:
				take([]place{ownMemory, inPlace, inPlace, inPlace, givenMemory, givenMemory, inPlace, inPlace}[rnd.IntN(8)])
			case 3:
				take(inPlace)
			default:
				if len(lentOut) == 0 {
					continue
				}
				i := rnd.IntN(len(lentOut))
				whole(lentOut[i])
				lentOut[i].l.Release()
				if rnd.IntN(3) == 0 {
					lentOut[i].l.Release() // once more, while others may use the loan
				}
				lentOut = append(lentOut[:i], lentOut[i+1:]...)
			}
			for _, g := range append(append([]got(nil), lentOut...), kept...) {
				whole(g)
			}
		}
		for q.batches.len() > 0 {
			take(inPlace)
		}
		for _, g := range lentOut {
			whole(g)
			g.l.Release()
		}
		for _, g := range kept {
			whole(g)
		}
		if want := len(all) - len(receivedOf); pool.back != want || want == 0 {
			t.Fatalf("seed %d: %d messages came back, want %d of %d", seed, pool.back, want, len(all))
		}
	}
}
