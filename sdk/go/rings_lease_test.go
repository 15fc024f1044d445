//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import "testing"

// A lease that was released may be released once more, whenever: that gives back
// nothing of what somebody borrowed since, though the same memory keeps track of it.
func TestRingsReleaseTwice(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	borrow := func() Lease {
		t.Helper()
		if err := a.Send(ctx, peerAddr, []byte("x")); err != nil {
			t.Fatal(err)
		}
		n, l, err := b.Borrow(ctx, make([]Datagram, 1))
		if n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return l
	}
	out := func(want uint32, when string) {
		t.Helper()
		r := ringsOf(b)
		r.rxMu.Lock()
		defer r.rxMu.Unlock()
		if got := r.rx.recv.Out(); uint32(got) != want {
			t.Errorf("%s: %d trains are out, want %d", when, got, want)
		}
	}
	first := borrow()
	first.Release()
	first.Release()
	second, third := borrow(), borrow()
	first.Release()
	out(2, "the first is released for the third time")
	second.Release()
	second.Release()
	out(1, "the second is released twice")
	fourth := borrow()
	second.Release()
	first.Release()
	out(2, "the fourth is borrowed")
	third.Release()
	fourth.Release()
	out(0, "all are released")
}
