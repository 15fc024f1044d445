package soft

import (
	"context"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport/ib"
)

// TestForgottenAsksAgain: a peer whose request was left without an answer asks again, and is
// connected then.
func TestForgottenAsksAgain(t *testing.T) {
	a, b := devices(t, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	asks := 0 // the reactor's thread
	l, err := b.Listen(netip.AddrPortFrom(b.cfg.Addr, testPort), func(q ib.Asked) {
		if asks++; asks == 1 {
			q.Forget()
			q.Reject(nil) // has no effect
			return
		}
		if err := q.Accept(y.q, ib.Param{Retry: 7, RNRRetry: 7}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := a.Dial(ctx, netip.AddrPort{}, l.Addr(), x.q, ib.Param{Retry: 7, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	if b.r.Sync(); asks != 2 {
		t.Errorf("the peer has asked %d times, want twice", asks)
	}
	if n := counter(b, "asks_forgotten"); n != 1 {
		t.Errorf("%d requests without an answer are counted, want 1", n)
	}
}
