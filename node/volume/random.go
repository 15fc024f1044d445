package volume

import (
	"math/rand"
	randv2 "math/rand/v2"
)

// seed is a random number.
func (h *Host) seed() uint64 { return randv2.Uint64() }

// random is a source of randomness for a core.
func (h *Host) random() *rand.Rand { return rand.New(rand.NewSource(int64(h.seed()))) }
