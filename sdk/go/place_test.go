//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// places runs a test over a stream and over rings. push has payloads arrive.
func places(t *testing.T, f func(t *testing.T, s *Socket, push func(payloads ...string))) {
	t.Run("grpc", func(t *testing.T) {
		_, _, s, st := bindFake(t)
		f(t, s, func(payloads ...string) {
			var ds []Datagram
			for _, p := range payloads {
				ds = append(ds, dgram(p))
			}
			st.push(ds...)
		})
	})
	t.Run("rings", func(t *testing.T) {
		s := newRingDaemon(t).bindRing(localAddr)
		f(t, s, func(payloads ...string) {
			var ds []Datagram
			for _, p := range payloads {
				ds = append(ds, Datagram{Addr: localAddr, Payload: []byte(p)})
			}
			if _, err := s.SendBatch(testContext(t), ds); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// A datagram that fits is copied to the buffer, one that does not is left for a call with a
// larger one, and neither writes behind the buffer's length.
func TestRecvInto(t *testing.T) {
	places(t, func(t *testing.T, s *Socket, push func(...string)) {
		ctx := testContext(t)
		push("", "four", "seven b", "x")
		buf := []byte("0123456789")
		for _, c := range []struct {
			size int // of the buffer
			want string
			err  error
		}{
			{0, "", nil}, {3, "", rdserr.ErrTooLarge}, {0, "", rdserr.ErrTooLarge}, {4, "four", nil}, {6, "", rdserr.ErrTooLarge}, {9, "seven b", nil}, {1, "x", nil},
		} {
			for i := range buf {
				buf[i] = '0' + byte(i)
			}
			n, from, err := s.RecvInto(ctx, buf[:c.size])
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || string(buf[:n]) != c.want {
				t.Fatalf("into %d bytes: %q, %v; want %q, %v", c.size, buf[:n], err, c.want, c.err)
			}
			if from.IsValid() != (err == nil) || string(buf[n:]) != "0123456789"[n:] {
				t.Errorf("into %d bytes: from %v, and behind it %q", c.size, from, buf[n:])
			}
			if err != nil {
				if size, ok, err := s.PeekSize(ctx); err != nil || !ok || size != map[bool]int{true: 4, false: 7}[c.size < 4] {
					t.Errorf("what was left has %d bytes, %v, %v", size, ok, err)
				}
			}
		}
		push("")
		if n, _, err := s.RecvInto(ctx, nil); n != 0 || err != nil {
			t.Errorf("an empty one into nothing: %d, %v", n, err)
		}
		over, cancel := context.WithCancel(ctx)
		cancel()
		_, _, err := s.RecvInto(over, buf)
		wantErr(t, err, rdserr.ErrCanceled)
	})
}

// Payloads go to the memory that their elements have, where it is enough and the caller's,
// and to memory that nobody else has elsewhere.
func TestRecvBatchUsesWhatItIsGiven(t *testing.T) {
	places(t, func(t *testing.T, s *Socket, push func(...string)) {
		ctx := testContext(t)
		// What was borrowed is not the caller's to write to, then or later.
		push("lent", "lent too")
		lent := make([]Datagram, 2)
		var l Lease
		for n := 0; n < 2; {
			got, lease, err := s.Borrow(ctx, lent[n:])
			if err != nil {
				t.Fatal(err)
			}
			n, l = n+got, lease
		}
		into := []Datagram{
			{Payload: make([]byte, 3, 16), Tag: 5}, lent[0], {Payload: make([]byte, 0, 3)}, {}, {Payload: make([]byte, 4)}, lent[1],
		}
		given := slices.Clone(into)
		want := []string{"zero", "one", "longer", "", "full", "six"}
		push(want...)
		for n := 0; n < len(want); {
			got, err := s.RecvBatch(ctx, into[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += got
		}
		for i, d := range into {
			if string(d.Payload) != want[i] || d.Payload == nil || d.Tag != 0 || d.lent {
				t.Errorf("%d: %q, want %q", i, d.Payload, want[i])
			}
			g := given[i].Payload
			mine := cap(g) > 0 && len(d.Payload) > 0 && &g[:1][0] == &d.Payload[0]
			if mine != (i == 0 || i == 4) {
				t.Errorf("%d: in the memory that was given: %v", i, mine)
			}
		}
		if string(lent[0].Payload) != "lent" || string(lent[1].Payload) != "lent too" {
			t.Errorf("what is borrowed became %q and %q", lent[0].Payload, lent[1].Payload)
		}
		l.Release()
	})
}

// Recv's payloads are the caller's for good, of every size, whatever comes behind them.
func TestRecvKeeps(t *testing.T) {
	places(t, func(t *testing.T, s *Socket, push func(...string)) {
		ctx := testContext(t)
		var kept []Datagram
		size := func(i int) int { return i * i * 3 } // up to 4,800 bytes: in slabs and not
		for i := range 40 {
			push(string(bytes.Repeat([]byte{byte(i + 1)}, size(i))))
			d, err := s.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, d)
			_ = append(d.Payload, 0xff) // reaches no other
		}
		for i, d := range kept {
			if len(d.Payload) != size(i) || bytes.Count(d.Payload, []byte{byte(i + 1)}) != size(i) {
				t.Fatalf("datagram %d of %d bytes has changed", i, size(i))
			}
		}
	})
}

// Messages lends one datagram at a time: what a loop that ends early has not seen is still
// there, and everything lent is given back, also by a loop that panics.
func TestMessages(t *testing.T) {
	places(t, func(t *testing.T, s *Socket, push func(...string)) {
		ctx := testContext(t)
		var want, got []string
		for i := range 20 {
			want = append(want, fmt.Sprint("number ", i))
		}
		push(want...)
		func() {
			defer func() { _ = recover() }()
			for d, err := range s.Messages(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, string(d.Payload)); len(got) == 3 {
					panic("in the loop")
				}
			}
		}()
		for d, err := range s.Messages(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, string(d.Payload)); len(got) == 7 {
				break
			}
		}
		ending, cancel := context.WithCancel(ctx)
		var last error
		for d, err := range s.Messages(ending) {
			if last = err; err != nil {
				continue // the last round
			}
			if got = append(got, string(d.Payload)); len(got) == len(want) {
				cancel()
			}
		}
		cancel()
		wantErr(t, last, rdserr.ErrCanceled)
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if s.FrontEnd() == Rings {
			if out := linkOf(s).recv.Out(); out != 0 {
				t.Errorf("%d slots are still lent", out)
			}
		}
	})
}

// TestRecvAllocatesNothing: receiving allocates nothing for a datagram that has a place, and
// one small payload in some hundred begins a slab.
func TestRecvAllocatesNothing(t *testing.T) {
	const n = 2000
	ctx := context.Background()
	buf, into := make([]byte, 64), make([]Datagram, 64)
	for name, c := range map[string]struct {
		each int
		most float64 // allocations a call
		call func(s *Socket) error
	}{
		"RecvInto": {1, 0.01, func(s *Socket) error { _, _, err := s.RecvInto(ctx, buf); return err }},
		"Recv":     {1, 0.02, func(s *Socket) error { _, err := s.Recv(ctx); return err }},
		"RecvBatch": {64, 0.01, func(s *Socket) error {
			for got := 0; got < 64; {
				n, err := s.RecvBatch(ctx, into[:64-got])
				if err != nil {
					return err
				}
				got += n
			}
			return nil
		}},
		"Messages": {64, 1, func(s *Socket) error { // the loop itself
			got := 0
			for _, err := range s.Messages(ctx) {
				if got++; err != nil || got == 64 {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d, s := ringSink(t)
			d.flood(localAddr, 64, 64)
			for range 200 {
				if err := c.call(s); err != nil {
					t.Fatal(err)
				}
			}
			if got := leastAllocs(n/c.each, func() {
				if err := c.call(s); err != nil {
					t.Error(err)
				}
			}, c.most, func() {}); got > c.most {
				t.Errorf("%v allocations a call, want %v at most", got, c.most)
			}
		})
	}
}
