package volume

import "math/rand"

// seed is a random number.
func (h *Host) seed() uint64 { return h.machine.Seed() }

// random is a source of randomness for a core.
func (h *Host) random() *rand.Rand { return rand.New(rand.NewSource(int64(h.seed()))) }
