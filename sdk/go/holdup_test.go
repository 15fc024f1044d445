//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestHoldupEnds: a try that waited for the daemon's answer as long as it may is told that
// there is none, and a call whose own context is over what became of that.
func TestHoldupEnds(t *testing.T) {
	r := newRingDaemon(t).bindRing(localAddr).fe.(*rings)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for what, c := range map[string]struct {
		h    holdup
		want error
	}{
		"a try":           {holdup{r: r, ctx: context.Background(), try: over, stop: cancel}, rdserr.ErrTimeout},
		"a try canceled":  {holdup{r: r, ctx: over, try: over, stop: cancel}, rdserr.ErrCanceled},
		"a call canceled": {holdup{r: r, ctx: over, wait: true}, rdserr.ErrCanceled},
	} {
		r.txMu.Lock()
		c.h.prepareLocked()
		r.txMu.Unlock()
		wantErr(t, c.h.sleep(), c.want)
		if c.h.end(); t.Failed() {
			t.Fatal(what)
		}
	}
}

// TestFullIsCountedOnce: a call that finds no room, waits and finds none again has met it once; one
// that does not wait counts it where it fails.
func TestFullIsCountedOnce(t *testing.T) {
	r := newRingDaemon(t).bindRing(localAddr).fe.(*rings)
	r.txMu.Lock()
	defer r.txMu.Unlock()
	full := func() uint64 { _, _, n := r.tx.region.Jams(); return n }
	for _, c := range []struct {
		h    holdup
		link *ringLink
		errs []error
		more uint64
	}{
		{holdup{r: r, wait: true}, r.tx, []error{rdserr.ErrWouldBlock, rdserr.ErrWouldBlock, rdserr.ErrCongested}, 1},
		{holdup{r: r, wait: true}, r.tx, []error{rdserr.ErrClosed, rdserr.ErrTimeout}, 0},
		{holdup{r: r, wait: true}, nil, []error{rdserr.ErrWouldBlock}, 0},
		{holdup{r: r}, r.tx, []error{rdserr.ErrWouldBlock}, 0},
	} {
		before := full()
		for _, err := range c.errs {
			c.h.countFull(c.link, err)
		}
		if n := full() - before; n != c.more {
			t.Errorf("waits %v, %v: counted %d, want %d", c.h.wait, c.errs, n, c.more)
		}
	}
}

// TestAwayTellsWhy: a send that finds no daemon is told why there is none, and after Close
// that the socket is closed; what the daemon answered is told as it is.
func TestAwayTellsWhy(t *testing.T) {
	r := &rings{Socket: &Socket{}}
	h := holdup{r: r}
	r.down = errors.New("its machine is switched off")
	err := h.final(peerAddr, errAway)
	if wantErr(t, err, rdserr.ErrShutdown); !strings.Contains(err.Error(), r.down.Error()) {
		t.Errorf("without a daemon: %v, and not that %v", err, r.down)
	}
	wantErr(t, h.final(peerAddr, rdserr.ErrWouldBlock), rdserr.ErrWouldBlock)
	r.Socket.over = rdserr.ErrClosed
	wantErr(t, h.final(peerAddr, errAway), rdserr.ErrClosed)
}

// TestTryWithoutALink: a try whose link breaks while it waits for the daemon has failed,
// and whether the daemon had it is not known; one that was answered first was answered.
func TestTryWithoutALink(t *testing.T) {
	s := &stream{Socket: &Socket{}}
	down := make(chan struct{})
	close(down)
	c := newCall()
	c.sent = true
	if err := s.awaitTry(c, down); err != errLost || !c.undecided || !c.abandoned {
		t.Errorf("the link is down: %v, undecided %v, abandoned %v", err, c.undecided, c.abandoned)
	}
	c = newCall()
	c.finish()
	if err := s.awaitTry(c, nil); err != nil || c.undecided {
		t.Errorf("answered: %v, undecided %v", err, c.undecided)
	}
}
