package memtest

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// TestSilentConnections: connections from many addresses of this machine that
// never say a word, as fast as they can be made. A good peer's datagrams arrive
// all the same.
func TestSilentConnections(t *testing.T) {
	port := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	a := startSmall(t, rdsdtest.AddrA, port)
	watchMemory(t, a, limit)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for k := range 2 {
		wg.Go(func() {
			var conns []net.Conn
			defer func() {
				for _, c := range conns {
					c.Close()
				}
			}()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 9, byte(k), byte(1+i%250))}, Timeout: time.Second}
				c, err := d.Dial("tcp", netip.AddrPortFrom(a.Addr, uint16(port)).String())
				if err != nil {
					continue
				}
				if conns = append(conns, c); len(conns) > 1000 {
					conns[0].Close()
					conns = conns[1:]
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	time.Sleep(time.Second)
	b := startSmall(t, rdsdtest.AddrB, port)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	from, err := b.Dial(rdsd.WithFrontEnd(rdsd.GRPC)).Bind(ctx, b.AddrPort(0))
	if err != nil {
		t.Fatal(err)
	}
	to, err := a.Dial(rdsd.WithFrontEnd(rdsd.GRPC)).Bind(ctx, a.AddrPort(0))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := from.Send(ctx, to.LocalAddr(), []byte("good")); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Recv(ctx); err != nil {
		t.Fatalf("a good peer's first datagram did not arrive in %v: %v", time.Since(begun), err)
	}
	t.Logf("REPORT the first datagram of a good peer took %v beside silent connections", time.Since(begun).Round(time.Millisecond))
}
