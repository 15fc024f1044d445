//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// Where there is no room for as much as would be good, less is taken, but never less than
// is needed.
func TestGrabsWhatThereIs(t *testing.T) {
	d := newRingDaemon(t)
	d.regions(shm.Spec{SendArena: 4096})
	a := d.bindRing(localAddr)
	d.bindRing(peerAddr)
	if err := a.Send(testContext(t), peerAddr, nil); err != nil { // the flow is open
		t.Fatal(err)
	}
	if err := a.Flush(testContext(t)); err != nil {
		t.Fatal(err)
	}
	r := ringsOf(a)
	r.txMu.Lock()
	defer r.txMu.Unlock()
	r.takeEventsLocked(r.tx)
	f := r.tx.send.Known(peerAddr)
	for _, c := range []struct {
		used, n, least, got int // got 0: there is none
	}{
		{64, 64, 64, 64}, {64, 4000, 64, 2000}, {64, 4000, 2048, 2048}, {64, 4000, 2049, 0}, {2048, 4000, 1000, 2000}, {2048, 4000, 2048, 2048},
		{2049, 64, 64, 0}, {1024, 2048, 2048, 2048}, {64, 4096, 1, 2048}, {2048 + 64, 64, 64, 0},
	} {
		held, err := r.tx.send.Grab(f, c.used)
		if err != nil {
			t.Fatal(err)
		}
		sl, err := r.grabLocked(r.tx, f, shm.Want{Body: c.n}, shm.Want{Body: c.least})
		if c.got == 0 && err != shm.ErrArena || c.got > 0 && (err != nil || len(sl.Body) != c.got) {
			t.Errorf("beside %d bytes, %d and at least %d: %d, %v; want %d", c.used, c.n, c.least, len(sl.Body), err, c.got)
		}
		if err == nil {
			r.tx.send.Drop(&sl)
		}
		r.tx.send.Drop(&held)
	}
	if r.tx.send.Out() != 0 || r.tx.send.Room() <= 0 {
		t.Errorf("%d slots are out", r.tx.send.Out())
	}
}

// A train that finds no room goes as shorter ones; each datagram comes once, in order, and
// a batch that does not wait is refused from the first one on that finds none.
func TestTrainsInASmallArena(t *testing.T) {
	d := newRingDaemon(t)
	d.regions(shm.Spec{SendArena: 1 << 16, RecvArena: 1 << 20})
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, stuckAddr, make([]byte, 1000)); err != nil { // keeps a part of the arena
		t.Fatal(err)
	}
	for _, sizes := range [][]int{{1000}, {1000, 999}, {50, 3000}} {
		var ds []Datagram
		for i := range 64 {
			ds = append(ds, Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{byte(i + 1)}, sizes[i%len(sizes)])})
		}
		sent := goErr(func() error {
			n, err := a.SendBatch(ctx, ds)
			if n != len(ds) {
				return fmt.Errorf("%d of %d: %w", n, len(ds), err)
			}
			return err
		})
		for i := range ds {
			got, err := b.Recv(ctx)
			if err != nil || !bytes.Equal(got.Payload, ds[i].Payload) {
				t.Fatalf("datagram %d: %d bytes, %v", i, len(got.Payload), err)
			}
		}
		if err := waitErr(t, sent); err != nil {
			t.Fatal(err)
		}
	}
	d.pause(true)
	var ds []Datagram
	for i := range 128 {
		ds = append(ds, Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{byte(i + 1)}, 1000)})
	}
	n, err := a.TrySendBatch(ctx, ds)
	be, ok := errors.AsType[*BatchError](err)
	if !ok || n == 0 || n > 64 || len(be.Errors) != len(ds)-n || be.Errors[0].Index != n || !errors.Is(err, rdserr.ErrWouldBlock) {
		t.Fatalf("%d of %d went into 64 KiB: %v", n, len(ds), err)
	}
	d.pause(false)
	for i := range n {
		if got, err := b.Recv(ctx); err != nil || !bytes.Equal(got.Payload, ds[i].Payload) {
			t.Fatalf("datagram %d: %d bytes, %v", i, len(got.Payload), err)
		}
	}
}

// regions says what new regions are like.
func (d *ringDaemon) regions(spec shm.Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spec = spec
}
