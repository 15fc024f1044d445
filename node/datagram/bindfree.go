package datagram

import (
	"math/rand/v2"
	"slices"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
)

const (
	// portsAHold is how many ports are looked at before the lock is let go for a moment.
	portsAHold = 256
	// lowPorts stay for clients that name them, as long as there are others.
	lowPorts = 1024
)

// BindFree binds a random one of the free ports within may, which is in order; nil without an
// error: there is none. Ready, when not nil, is called with the lock still held, before
// anything can arrive.
//
// All ports may be taken but the last, so they are looked at in stretches, between which
// others have the lock.
func BindFree(eng Engine, may []config.PortRange, o rds.SocketOptions, ready func(*rds.Socket)) (*rds.Socket, error) {
	if len(may) == 0 {
		return nil, nil
	}
	may = around(may)
	e, _ := eng.Lock()
	looked := 0
	// A peer may still send to what was closed lately: such ports are for when there are no others.
	for _, want := range []bool{true, false} {
		for _, r := range may {
			for p := int(r.First); p <= int(r.Last); p++ {
				if looked++; looked > portsAHold {
					eng.Unlock()
					e, _ = eng.Lock()
					looked = 1
				}
				if free, rested := e.Free(uint16(p)); !free || rested != want {
					continue
				}
				s, err := e.Bind(uint16(p), o)
				if err == nil && ready != nil {
					ready(s)
				}
				eng.Unlock() // never deferred: what a panic leaves is nothing to carry out
				return s, err
			}
		}
	}
	eng.Unlock()
	return nil, nil
}

// around is may from a random port on, with the low ports last.
func around(may []config.PortRange) []config.PortRange {
	var low, high []config.PortRange
	n := 0
	for _, r := range may {
		if r.First < lowPorts {
			low = append(low, config.PortRange{First: r.First, Last: min(r.Last, lowPorts-1)})
		}
		if r.Last >= lowPorts {
			r.First = max(r.First, lowPorts)
			high = append(high, r)
			n += int(r.Last) - int(r.First) + 1
		}
	}
	if n == 0 {
		return low
	}
	for i, k := 0, rand.IntN(n); ; i++ {
		r := high[i]
		size := int(r.Last) - int(r.First) + 1
		if k >= size {
			k -= size
			continue
		}
		at := r.First + uint16(k)
		list := slices.Concat([]config.PortRange{{First: at, Last: r.Last}}, high[i+1:], high[:i])
		if k > 0 {
			list = append(list, config.PortRange{First: r.First, Last: at - 1})
		}
		return append(list, low...)
	}
}
