//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"testing"
)

// TestLoopsEndWithTheirContext: a loop ends with its context also where something is there to be read each
// time, and leaves what it has not read to others.
func TestLoopsEndWithTheirContext(t *testing.T) {
	const n = 100
	loops := map[string]func(ctx context.Context, s *Socket, each func()) error{
		"messages": func(ctx context.Context, s *Socket, each func()) (last error) {
			for _, last = range s.Messages(ctx) {
				each()
			}
			return last
		},
		"all": func(ctx context.Context, s *Socket, each func()) (last error) {
			for _, last = range s.All(ctx) {
				each()
			}
			return last
		},
	}
	for what, loop := range loops {
		t.Run(what, func(t *testing.T) {
			d := newRingDaemon(t)
			a, s := d.bindRing(localAddr), d.bindRing(peerAddr)
			for i := range n {
				if err := a.Send(testContext(t), peerAddr, []byte{byte(i)}); err != nil {
					t.Fatal(err)
				}
				if err := a.Flush(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(testContext(t))
			rounds := 0
			err := loop(ctx, s, func() {
				if rounds++; rounds == n/2 {
					cancel()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if rounds != n/2+1 { // the last with the error
				t.Errorf("%d rounds of a loop whose context ended in number %d", rounds, n/2)
			}
			// Another loop goes on with the rest.
			ctx, cancel = context.WithCancel(testContext(t))
			rest := 0
			_ = loop(ctx, s, func() {
				if rest++; rest == n/2 {
					cancel()
				}
			})
			if rest != n/2+1 {
				t.Errorf("%d rounds of the next loop", rest)
			}
		})
	}
}

// TestOutcomesEndWithTheirContext: a loop over outcomes whose context has ended reads what was known by then,
// and not what is decided while it does.
func TestOutcomesEndWithTheirContext(t *testing.T) {
	const n = 100
	d := newRingDaemon(t)
	a := d.bindRing(localAddr, WithOutcomes())
	d.bindRing(peerAddr)
	send := func() {
		if err := a.Send(testContext(t), peerAddr, nil); err != nil {
			t.Fatal(err)
		}
		if err := a.Flush(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		send()
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	rounds := 0
	for _, err := range a.Outcomes(ctx) {
		if rounds++; rounds > n {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("round %d of a loop whose context had ended with %d outcomes there: %v", rounds, n, err)
			}
			break
		}
		if err != nil {
			t.Fatalf("round %d of %d: %v", rounds, n, err)
		}
		send()
	}
	if rounds != n+1 {
		t.Errorf("%d rounds", rounds)
	}
}
