//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"testing"
)

// Datagrams of changing lengths gather like those of one, sent one by one and in batches; for a daemon that does not
// take such, each batch is a descriptor and each datagram sent alone as well.
func TestRingsAppendMixed(t *testing.T) {
	for _, takes := range []bool{true, false} {
		d := newRingDaemon(t)
		a, b := d.bindRing(localAddr, WithOutcomes()), d.bindRing(peerAddr)
		ctx := testContext(t)
		r := ringsOf(a)
		if !takes {
			r.tx.region.Takes = 0
		}
		if err := a.Send(ctx, peerAddr, []byte("opens the flow")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Recv(ctx); err != nil {
			t.Fatal(err)
		}
		d.pause(true)
		tail := func() uint64 {
			r.txMu.Lock()
			defer r.txMu.Unlock()
			return r.tx.region.SendTail().Load()
		}
		before := tail()
		var want [][]byte
		payload := func() []byte {
			p := bytes.Repeat([]byte{byte(len(want))}, len(want)*37%300)
			want = append(want, p)
			return p
		}
		const single, batches, each = 200, 20, 30
		for range single {
			if err := a.TrySend(peerAddr, payload()); err != nil {
				t.Fatal(err)
			}
		}
		alone := tail() - before
		for range batches {
			ds := make([]Datagram, each)
			for i := range ds {
				ds[i] = Datagram{Addr: peerAddr, Payload: payload()}
			}
			if n, err := a.TrySendBatch(ctx, ds); n != each || err != nil {
				t.Fatal(n, err)
			}
		}
		together := tail() - before - alone
		switch {
		case takes && (alone > 10 || together > 6):
			t.Errorf("%d descriptors for %d datagrams, then %d for %d batches", alone, single, together, batches)
		case !takes && (alone != single || together != batches):
			t.Errorf("a daemon that takes no mixed trains: %d descriptors for %d datagrams, then %d for %d batches", alone, single, together, batches)
		}
		d.pause(false)
		for i := range want {
			if got, err := b.Recv(ctx); err != nil || !bytes.Equal(got.Payload, want[i]) {
				t.Fatalf("takes %v, datagram %d: %d bytes, %v; want %d", takes, i, len(got.Payload), err, len(want[i]))
			}
		}
		next := uint64(1)
		for o, err := range a.Outcomes(ctx) {
			if err != nil || o.Tag != next || o.Kind != Delivered {
				t.Fatalf("%+v %v, want tag %d", o, err, next)
			}
			if next++; next > uint64(len(want))+1 {
				break
			}
		}
	}
}
