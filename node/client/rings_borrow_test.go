package client

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// TestBorrowedInTheWay: what is held takes the whole receive buffer, so that nothing
// more can come. Borrow says that, where Recv waits; when it is released the next one comes.
func TestBorrowedInTheWay(t *testing.T) {
	_, cfg := startClients(t)
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	addr := netip.AddrPortFrom(cfg.RDS.Addresses[0], 0)
	a, err := client.Bind(clienttest.Context(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Bind(clienttest.Context(t), addr, rdsd.WithRecvBuffer(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	const large = 1 << 20
	var leases []rdsd.Lease
	for i := range 3 { // the third passes the limit
		if err := a.Send(clienttest.Context(t), b.LocalAddr(), make([]byte, 30<<10)); err != nil {
			t.Fatal(i, err)
		}
		_, l, err := b.Borrow(clienttest.Context(t), make([]rdsd.Datagram, 1))
		if err != nil {
			t.Fatal(i, err)
		}
		leases = append(leases, l)
	}
	sent := make(chan error, 1)
	go func() { sent <- a.Send(clienttest.Context(t), b.LocalAddr(), make([]byte, large)) }()
	clock := await.NewClock(t)
	got := make([]rdsd.Datagram, 1)
	_, _, err = b.Borrow(clienttest.Context(t), got)
	if !errors.Is(err, rdserr.ErrWouldBlock) || clock.Now() > 2*time.Second {
		t.Fatalf("with %d leases in the way Borrow says %v after %v", len(leases), err, clock.Now())
	}
	waits := make(chan int, 1)
	go func() {
		d, err := b.Recv(clienttest.Context(t)) // a call that lends nothing waits
		if err != nil {
			t.Error(err)
		}
		waits <- len(d.Payload)
	}()
	select {
	case n := <-waits:
		t.Fatalf("Recv came back with %d bytes", n)
	case <-time.After(50 * time.Millisecond):
	}
	for _, l := range leases {
		l.Release()
	}
	select {
	case n := <-waits:
		if n != large {
			t.Errorf("%d bytes came", n)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("nothing came when all was released")
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
