package sim

import (
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport/transporttest"
)

func TestOneSidedConformance(t *testing.T) {
	for _, v := range []struct {
		name string
		p    Profile
	}{
		{"fair", Profile{Latency: time.Millisecond, SndBuf: 1 << 20, RcvBuf: 1 << 20}},
		{"chopped", Profile{Latency: time.Millisecond, Jitter: time.Millisecond, SndBuf: 1 << 16, RcvBuf: 5000, Chop: 1, Loss: 0.01, AckDelay: time.Millisecond}},
	} {
		t.Run(v.name, func(t *testing.T) {
			n := NewNet(&Clock{}, rand.New(rand.NewSource(1)), v.p)
			a, b := n.AddHost(addrA), n.AddHost(addrB)
			transporttest.RunOneSided(t, transporttest.OneSided{A: NewOneSided(a), B: NewOneSided(b),
				AddrA: netip.AddrPortFrom(addrA, 0), AddrB: netip.AddrPortFrom(addrB, 0),
				Step: func() {
					for range 10 {
						n.Step(n.Now() + time.Millisecond)
					}
				}})
		})
	}
}
