//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// fullPair has l send to dst by a pair that has no room, and that nobody reads.
func fullPair(t *testing.T, l *ringLink, dst netip.AddrPort) {
	t.Helper()
	made, err := shm.CreatePair(1, shm.MinPairBytes)
	if err != nil {
		t.Fatal(err)
	}
	p, err := shm.OpenPair(made.WordsFD, made.DataFD, made.Bytes, shm.PairSends)
	made.Lent()
	made.Close()
	made.Disown()
	if err != nil {
		t.Fatal(err)
	}
	o := &pairOut{1, &pairMem{p: p}, shm.NewPairSender(p)}
	o.mem.refs.Store(1)
	for n := o.s.Most(); n > 0; {
		if b := o.s.Begin(n); b == nil {
			n /= 2
		} else if !o.s.Put(len(b), 1) {
			t.Fatal("a pair that is open takes nothing")
		}
	}
	if was := l.out[dst]; was != nil {
		l.dropOutLocked(dst, was)
	}
	if l.out == nil {
		l.out = map[netip.AddrPort]*pairOut{}
	}
	l.out[dst] = o
}

// meddledPass has another call use txMu while a pass of a batch looks for room in a pair, and
// returns what the pass has left. The lock is held on return.
func meddledPass(t *testing.T, r *rings, full netip.AddrPort, ds []Datagram, meddle func()) (b *ringBatch, left []span) {
	r.txMu.Lock()
	for { // the other call may be too late to meddle
		fullPair(t, r.tx, full)
		b = &ringBatch{r: r, ds: ds, h: holdup{r: r, ctx: t.Context(), wait: true}, errs: batchErrors{op: "send", ds: ds}}
		b.firstTag = r.nextTag + 1
		r.nextTag += uint64(len(ds))
		r.pass++
		did, late, done := false, false, make(chan struct{})
		go func() {
			defer close(done)
			r.txMu.Lock()
			defer r.txMu.Unlock()
			if late {
				return
			}
			did = true
			r.pass++
			meddle()
		}()
		left = b.spanLocked(span{0, len(ds)}, nil)
		if did {
			return b, left
		}
		if len(left) != 1 || left[0] != (span{0, len(ds)}) {
			t.Fatalf("the pass has left %v", left)
		}
		late = true
		r.txMu.Unlock()
		<-done
		r.txMu.Lock()
		b.h.end()
	}
}

// TestPassWithPair: while a batch looks for room in a pair other calls send. What they note of
// destinations is not taken for what the batch has noted, and the other way around.
func TestPassWithPair(t *testing.T) {
	begin := func(t *testing.T) (d *ringDaemon, a, b *Socket, r *rings) {
		d = newRingDaemon(t)
		a, b = d.bindRing(localAddr), d.bindRing(peerAddr)
		d.bindRing(otherAddr)
		for _, dst := range []netip.AddrPort{peerAddr, otherAddr} {
			if err := a.Send(testContext(t), dst, []byte("first")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Recv(testContext(t)); err != nil {
			t.Fatal(err)
		}
		r = a.fe.(*rings)
		eventually(t, "all is placed", func() bool {
			r.txMu.Lock()
			defer r.txMu.Unlock()
			r.takeEventsLocked(r.tx)
			f := r.tx.send.Known(otherAddr)
			return f != nil && f.Out() == 0
		})
		d.setFlow(peerAddr, shm.FlowCongested)
		return d, a, b, r
	}
	t.Run("overtaking", func(t *testing.T) {
		d, _, to, r := begin(t)
		ds := []Datagram{{Addr: peerAddr, Payload: []byte("0")}, {Addr: otherAddr}, {Addr: peerAddr, Payload: []byte("2")}}
		b, left := meddledPass(t, r, otherAddr, ds, func() { d.setFlow(peerAddr, shm.FlowClear) })
		b.waitLocked(left)
		r.txMu.Unlock()
		if _, err := b.errs.result(); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 3; i += 2 {
			if got, err := to.Recv(testContext(t)); err != nil || string(got.Payload) != fmt.Sprint(i) {
				t.Errorf("%q, %v; want datagram %d", got.Payload, err, i)
			}
		}
	})
	t.Run("waiting", func(t *testing.T) {
		d, _, _, r := begin(t)
		ds := []Datagram{{Addr: otherAddr}, {Addr: peerAddr}}
		b, left := meddledPass(t, r, otherAddr, ds, func() {
			f, err := r.tx.send.Flow(peerAddr)
			if err != nil {
				t.Error(err)
				return
			}
			f.Held = heldMark(r.pass, false) // as another batch notes it
		})
		sent := goErr(func() error {
			b.waitLocked(left)
			r.txMu.Unlock()
			_, err := b.errs.result()
			return err
		})
		eventually(t, "the batch sleeps", func() bool {
			r.waiters.mu.Lock()
			defer r.waiters.mu.Unlock()
			return len(r.waiters.list) == 1
		})
		d.setFlow(peerAddr, shm.FlowClear)
		if err := waitErr(t, sent); err != nil {
			t.Error(err)
		}
	})
	t.Run("a batch that may not wait", func(t *testing.T) {
		d, a, _, r := begin(t)
		d.setFlow(peerAddr, shm.FlowClear)
		r.txMu.Lock()
		fullPair(t, r.tx, otherAddr)
		r.txMu.Unlock()
		n, err := a.TrySendBatch(testContext(t), []Datagram{{Addr: otherAddr}, {Addr: peerAddr}})
		if n != 2 || err != nil {
			t.Errorf("%d were accepted, %v", n, err)
		}
	})
}

// TestExplainedTogether: a daemon that has gone since it refused destinations is not waited for
// once for each of them, and not beyond the end of the call's context.
func TestExplainedTogether(t *testing.T) {
	d := newRingDaemon(t)
	r := ringsOf(d.bindRing(localAddr))
	d.stop()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), ended} {
		ds := make([]Datagram, 30)
		b := &ringBatch{r: r, ds: ds, h: holdup{r: r, ctx: ctx}, errs: batchErrors{op: "send", ds: ds}}
		for i := range ds {
			ds[i].Addr = portOf(i + 1)
			b.refuse(i, i+1, flowRefusal{rdserr.ErrHostDown})
		}
		wantErr(t, waitErr(t, goErr(func() error {
			b.explain()
			_, err := b.errs.result()
			return err
		})), rdserr.ErrHostDown)
		wantErr(t, waitErr(t, goErr(func() error { return b.h.final(peerAddr, flowRefusal{rdserr.ErrHostDown}) })), rdserr.ErrHostDown)
	}
}
