package memtest

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// TestEmptyDatagrams: sockets that send datagrams without payload to a peer that
// is not there. Their headers are memory too.
func TestEmptyDatagrams(t *testing.T) {
	const ports = 7
	for _, fe := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
		t.Run(fe.String(), func(t *testing.T) {
			d := start(t)
			watchMemory(t, d, limit)
			c := d.Dial(rdsd.WithFrontEnd(fe))
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 20 {
				s, err := c.Bind(ctx, d.AddrPort(0))
				if err != nil {
					t.Logf("socket %d: %v", i, err)
					break
				}
				wg.Go(func() {
					for k := range 60_000 {
						to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 9, byte(i)}), 4000+uint16(k%ports))
						if err := s.TrySend(to, nil); err != nil {
							if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) {
								return
							}
							// The question for another destination stands in the ring behind what waits for memory, of
							// which the others may have taken all.
							if fe == rdsd.Rings && k > 0 && k < ports && errors.Is(err, unix.ETIMEDOUT) {
								return
							}
							if !strings.Contains(err.Error(), "closed") {
								t.Errorf("socket %d, datagram %d: %v", i, k, err)
							}
							return
						}
					}
				})
			}
			wg.Wait()
			c.Close() // they are all of one user, whose share this was
			settled(t, d, "memory_sending", 0)
			works(t, d, rdsd.Rings)
		})
	}
}
