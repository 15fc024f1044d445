package rds

import (
	"math/rand"
	"net/netip"
	"slices"
	"testing"
)

// TestFlushesOfOneThatHangs: while one datagram has no outcome, whatever is sent, flushed and given up
// behind it leaves nothing behind.
func TestFlushesOfOneThatHangs(t *testing.T) {
	e, now := lone(t, nil)
	s := bind(t, e, 4000, SocketOptions{})
	send := func(i int) {
		if err := s.Send(now, nobody(i), nil, uint64(i), Quiet); err != nil {
			t.Fatal(err)
		}
	}
	send(0)
	for i := range uint64(10000) {
		send(1)
		s.Flush(i)
		if i%2 == 0 {
			s.Unflush(i)
		}
		if n, _, err := s.Cancel(now, nobody(1)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		s.Unflush(i)
	}
	if n := len(s.epochs); n > 3 {
		t.Errorf("%d epochs are kept for one datagram", n)
	}
	e.holds(t)
	if f := s.Flushed(); len(f) > 0 {
		t.Errorf("%d flushes are answered that were given up", len(f))
	}
	// What was needed for many is not kept.
	for i := range 1000 {
		send(i)
		s.Flush(uint64(i))
	}
	e.holds(t)
	if k, _, _ := s.Cancel(now, netip.AddrPortFrom(nobody(0).Addr(), 0)); k != 1001 || len(s.Flushed()) != 1000 {
		t.Errorf("%d were cancelled", k)
	}
	if n := len(s.epochs); n > keptEpochs {
		t.Errorf("%d places for epochs are kept", n)
	}
	e.holds(t)
}

// TestFlushesInTurn: a flush is answered when all that was accepted before it is decided, and no
// sooner, in the order of the calls, in whatever order the outcomes come.
func TestFlushesInTurn(t *testing.T) {
	type waits struct {
		id uint64
		of map[int]bool // undecided datagrams accepted before
	}
	for seed := range int64(300) {
		rng := rand.New(rand.NewSource(seed))
		e, now := lone(t, nil)
		s := bind(t, e, 4000, SocketOptions{})
		var flushes []waits
		var undecided []int
		id := uint64(0)
		var want []uint64
		answer := func() {
			for len(flushes) > 0 && len(flushes[0].of) == 0 {
				want = append(want, flushes[0].id)
				flushes = flushes[1:]
			}
		}
		for step := range 200 {
			switch n := rng.Intn(10); {
			case n < 4:
				if err := s.Send(now, nobody(step), nil, 0, Quiet); err != nil {
					t.Fatal(err)
				}
				undecided = append(undecided, step)
			case n < 6:
				w := waits{id, map[int]bool{}}
				for _, i := range undecided {
					w.of[i] = true
				}
				flushes = append(flushes, w)
				answer()
				s.Flush(id)
				id++
			case n < 7 && len(flushes) > 0:
				i := rng.Intn(len(flushes))
				s.Unflush(flushes[i].id)
				flushes = slices.Delete(flushes, i, i+1)
				answer()
			case len(undecided) > 0:
				i := rng.Intn(len(undecided))
				at := undecided[i]
				undecided = slices.Delete(undecided, i, i+1)
				for _, w := range flushes {
					delete(w.of, at)
				}
				answer()
				s.Cancel(now, nobody(at))
			}
			if got := s.Flushed(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: %v are answered, want %v", seed, step, got, want)
			}
			want = nil
			if n, most := len(s.epochs), step+2; n > most {
				t.Fatalf("seed %d, step %d: %d epochs", seed, step, n)
			}
			e.holds(t)
		}
	}
}
