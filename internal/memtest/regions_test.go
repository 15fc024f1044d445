package memtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// TestRegionsInACgroup: a user opens one socket with rings after the other, has the daemon
// fill its large receive buffer, reads that and keeps the socket; and closes some whose
// regions stay mapped by what it has borrowed. What the daemon puts into regions is charged to
// its own cgroup, which is 64 MiB larger than limits.memory_bytes; all together they would take
// several times as much. It lives, and everything arrives.
func TestRegionsInACgroup(t *testing.T) {
	limitDaemons(t, limit+slack)
	d := start(t)
	watchMemory(t, d, limit)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := d.Dial(rdsd.WithFrontEnd(rdsd.Rings))
	body := make([]byte, 1<<20)
	const sockets, each = 64, 4
	for i := range sockets {
		s, err := client.Bind(ctx, d.AddrPort(0), rdsd.WithRecvBuffer(16<<20), rdsd.WithSendBuffer(16<<20), rdsd.WithOutcomes())
		if err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
		for k := range each {
			body[0], body[len(body)-1] = byte(i), byte(k)
			if err := deliver(ctx, s, body); err != nil {
				t.Fatalf("socket %d, datagram %d: %v", i, k, err)
			}
		}
		if i%16 == 15 { // what is borrowed stays mapped when the socket is closed
			n, lease, err := s.Borrow(ctx, make([]rdsd.Datagram, 2))
			if err != nil || n == 0 {
				t.Fatalf("socket %d: %v", i, err)
			}
			defer lease.Release()
			s.Close()
			continue
		}
		for k := range each {
			m, err := s.Recv(ctx)
			if err != nil {
				t.Fatalf("socket %d, datagram %d: %v", i, k, err)
			}
			if p := m.Payload; len(p) != len(body) || p[0] != byte(i) || p[len(p)-1] != byte(k) {
				t.Fatalf("socket %d, datagram %d: %s", i, k, fmt.Sprint(len(p), p[0], p[len(p)-1]))
			}
		}
		defer s.Close()
	}
	works(t, d, rdsd.Rings)
	works(t, d, rdsd.GRPC)
}

// deliver sends body to the socket itself until it has arrived: what stays at an address may fail
// for want of memory, which the outcome says.
func deliver(ctx context.Context, s *rdsd.Socket, body []byte) error {
	for {
		if err := s.Send(ctx, s.LocalAddr(), body); err != nil {
			return err
		}
		for o, err := range s.Outcomes(ctx) {
			switch {
			case err != nil:
				return err
			case o.Kind == rdsd.Delivered:
				return nil
			case o.Kind != rdsd.Failed:
				return fmt.Errorf("outcome %v", o)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
}
