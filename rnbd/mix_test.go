package rnbd

import "testing"

// mix is splitmix64: the second argument is how many values of the generator that the
// first one seeds are skipped. Clients are told the life of a store by it, so that two versions of the
// daemon that run one after the other have to agree.
func TestMix(t *testing.T) {
	for seed, want := range map[uint64][]uint64{
		0:       {0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f},
		1234567: {6457827717110365317, 3203168211198807973, 9817491932198370423},
	} {
		for n, v := range want {
			if got := mix(seed, uint64(n)); got != v {
				t.Errorf("value %d of seed %d is %#x, want %#x", n, seed, got, v)
			}
		}
	}
	// The only input that splitmix64 makes 0 of is 0.
	if got := mix(0, 1<<64-1); got != 1 {
		t.Errorf("mix makes %d of 0", got)
	}
}
