package rdsd

import (
	"fmt"
	"testing"
)

func TestRingsEcho(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	for i := range 1000 {
		if err := a.Send(ctx, peerAddr, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		got, err := b.Recv(ctx)
		if err != nil || string(got.Payload) != fmt.Sprint(i) || got.Addr != localAddr {
			t.Fatalf("%v %v", got, err)
		}
		if err := b.TrySend(localAddr, got.Payload); err != nil {
			t.Fatal(err)
		}
		if got, err = a.Recv(ctx); err != nil || string(got.Payload) != fmt.Sprint(i) {
			t.Fatalf("%v %v", got, err)
		}
	}
}
