package adversary

import (
	"time"

	"github.com/rdsd/rdsd/shm"
)

// releaseActs get datagrams of their own and do with the memory what nobody
// should.
var releaseActs = []Act{
	{"ring/never-release", 2, func(s *Stage) error { return feed(s, func(*Ring, shm.RecvDesc) {}) }},
	{"ring/release-without-ringing", 2, func(s *Stage) error {
		return feed(s, func(r *Ring, d shm.RecvDesc) { r.Release(d.Slot) })
	}},
	{"ring/release-twice", 2, func(s *Stage) error {
		return feed(s, func(r *Ring, d shm.RecvDesc) { r.Release(d.Slot); r.Release(d.Slot); r.Ring() })
	}},
	{"ring/release-lies", 2, func(s *Stage) error {
		return feed(s, func(r *Ring, d shm.RecvDesc) { r.Release(s.lie(d.Slot)); r.Ring() })
	}},
	{"ring/release-late", 1, func(s *Stage) error {
		var held []uint64
		return feed(s, func(r *Ring, d shm.RecvDesc) {
			if held = append(held, d.Slot); len(held) > 500 { // in no order
				for len(held) > 8 {
					i := s.IntN(len(held))
					r.Release(held[i])
					held[i] = held[len(held)-1]
					held = held[:len(held)-1]
				}
				r.Ring()
			}
		})
	}},
}

// feed has one socket send to another, which hands every descriptor to take.
// When the receiving one is closed it begins anew.
func feed(s *Stage, take func(*Ring, shm.RecvDesc)) error {
	for !s.Over() {
		to, err := s.BindRing(0, 256<<10)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		from, err := s.BindRing(0, 256<<10)
		if err != nil {
			to.Close()
			s.Pause(20 * time.Millisecond)
			continue
		}
		from.Flow(0, 1, to.Local)
		size := []int{0, 16, 1000, 20_000, 64_000}[s.IntN(5)]
		until := time.Now().Add(time.Duration(200+s.IntN(600)) * time.Millisecond)
		for n := uint64(0); !s.Over() && to.Reg.Closed().Load() == 0 && time.Now().Before(until); n++ {
			from.PostIf(shm.MakeWord(shm.KindEach, size, 1), shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n)})
			from.Ring()
			from.Events()
			got := to.Receives()
			for _, d := range got {
				take(to, d)
			}
			if len(got) == 0 {
				s.Pause(200 * time.Microsecond)
			}
		}
		from.Close()
		to.Close()
	}
	return nil
}
