//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestRingsRestOfTrain: datagrams that came together are read one by one, each once and in
// order, by whichever call; one that does not fit stays; the slot is given back with the last,
// and not before.
func TestRingsRestOfTrain(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	for _, sizes := range [][]int{{4, 4, 4, 4, 4}, {5, 1, 9000, 0, 3}} {
		var batch []Datagram
		for i, n := range sizes {
			batch = append(batch, Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{byte(i + 1)}, n)})
		}
		if n, err := a.SendBatch(ctx, batch); n != len(batch) || err != nil {
			t.Fatal(n, err)
		}
		out := func(i, want int) {
			t.Helper()
			r := ringsOf(b)
			r.rxMu.Lock()
			defer r.rxMu.Unlock()
			if got := r.rx.recv.Out(); got != want {
				t.Errorf("after datagram %d: %d slots are out, want %d", i, got, want)
			}
		}
		var kept [][]byte
		for i, want := range batch {
			if i%2 == 0 {
				got, err := b.Recv(ctx)
				if err != nil || got.Addr != localAddr {
					t.Fatalf("datagram %d: %v, %v", i, got.Addr, err)
				}
				kept = append(kept, got.Payload)
			} else {
				if len(want.Payload) > 0 {
					if _, _, err := b.RecvInto(ctx, make([]byte, len(want.Payload)-1)); !errors.Is(err, rdserr.ErrTooLarge) {
						t.Errorf("datagram %d, too large for the buffer: %v", i, err)
					}
				}
				buf := make([]byte, len(want.Payload)+1)
				n, from, err := b.RecvInto(ctx, buf)
				if err != nil || from != localAddr {
					t.Fatalf("datagram %d: %v, %v", i, from, err)
				}
				kept = append(kept, buf[:n])
			}
			if i < len(batch)-1 {
				out(i, 1)
			} else {
				out(i, 0)
			}
		}
		for i, p := range kept { // at the end: nothing was written over
			if !bytes.Equal(p, batch[i].Payload) {
				t.Errorf("datagram %d: %d bytes %v, want %d", i, len(p), p[:min(len(p), 4)], len(batch[i].Payload))
			}
		}
	}
}

// TestRingsRestIsForRequestsFirst: a datagram in the middle of a train goes to the Request that
// waits for it, not to a Recv.
func TestRingsRestIsForRequestsFirst(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	three := []Datagram{{Addr: peerAddr, Payload: []byte("1")}, {Addr: peerAddr, Payload: []byte("2")}, {Addr: peerAddr, Payload: []byte("3")}}
	if _, err := a.SendBatch(ctx, three); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Recv(ctx); err != nil || string(got.Payload) != "1" {
		t.Fatalf("%q, %v", got.Payload, err)
	}
	r := ringsOf(b)
	w := &requestWaiter{from: localAddr, reply: make(chan Datagram, 1)}
	b.fe.addRequest(w)
	if _, ok := b.fe.rest(); ok {
		t.Error("a datagram was taken from before a Request")
	}
	if _, _, ok := b.fe.restInto(make([]byte, 8)); ok {
		t.Error("a datagram was copied from before a Request")
	}
	b.fe.removeRequest(w)
	for _, want := range []string{"2", "3"} {
		if got, err := b.Recv(ctx); err != nil || string(got.Payload) != want {
			t.Errorf("%q, %v, want %q", got.Payload, err, want)
		}
	}
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	if n := r.rx.recv.Out(); n != 0 {
		t.Errorf("%d slots are out", n)
	}
}

// TestRingsBatchesJoin: what several SendBatch calls post while the daemon is busy becomes one
// train, in order, with tags that count on; other lengths and destinations end it.
func TestRingsBatchesJoin(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithOutcomes()), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, nil); err != nil { // the flow is open
		t.Fatal(err)
	}
	if _, err := b.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	batch := func(n, size int, first byte) []Datagram {
		ds := make([]Datagram, n)
		for i := range ds {
			ds[i] = Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{first + byte(i)}, size)}
		}
		return ds
	}
	d.pause(true)
	tail := func() uint64 { r := ringsOf(a); return r.tx.region.SendTail().Load() }
	before := tail()
	var want [][]byte
	var last uint64
	for _, ds := range [][]Datagram{batch(3, 64, 1), batch(5, 64, 4), batch(2, 64, 9), batch(2, 65, 20)} {
		if n, err := a.SendBatch(ctx, ds); n != len(ds) || err != nil {
			t.Fatal(n, err)
		}
		for i := range ds {
			if last != 0 && ds[i].Tag != last+1 {
				t.Errorf("tag %d after %d", ds[i].Tag, last)
			}
			last = ds[i].Tag
			want = append(want, ds[i].Payload)
		}
	}
	// The first asks for a block of its own size, which is full with it; from then on blocks are
	// larger.
	if got := tail() - before; got != 3 {
		t.Errorf("%d descriptors for three batches of one length and one of another, want 3", got)
	}
	d.pause(false)
	for i := range want {
		got, err := b.Recv(ctx)
		if err != nil || !bytes.Equal(got.Payload, want[i]) {
			t.Fatalf("datagram %d: %v, %v", i, got.Payload[:1], err)
		}
	}
}
