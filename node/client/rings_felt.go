package client

import (
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/shm"
)

// feltTotals is what clients with rings say of sends that never reached the
// daemon, because they refused them by themselves (shm/jam.go).
type Felt struct{ Refused, Waited, Full uint64 }

func (t *Felt) add(o Felt) {
	t.Refused += o.Refused
	t.Waited += o.Waited
	t.Full += o.Full
}

// feltRate is more sends a second than a process can refuse itself. What a client
// says beyond that is nonsense and not counted: it would hide what others say.
const feltRate = 100e6

// felt is how far one socket's client was heard.
type felt struct {
	told Felt
	at   time.Duration // reactor.Clock
}

// hear returns what the client has said since the last time.
func (f *felt) hear(reg *shm.Region) (d Felt) {
	now := reactor.Clock()
	most := uint64(feltRate * (now - f.at).Seconds())
	var t Felt
	t.Refused, t.Waited, t.Full = reg.Jams()
	for _, x := range []struct {
		was, is uint64
		into    *uint64
	}{{f.told.Refused, t.Refused, &d.Refused}, {f.told.Waited, t.Waited, &d.Waited}, {f.told.Full, t.Full, &d.Full}} {
		if n := x.is - x.was; x.is >= x.was && n <= most {
			*x.into = n
		}
	}
	f.told, f.at = t, now
	return d
}

// Felt hears all clients with rings and returns what they ever said. Regions are
// there as long as their sockets are in f.rings, and f.mu guards that.
func (f *Front) Felt() Felt {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.rings {
		f.heard.add(r.felt.hear(r.reg))
	}
	return f.heard
}
