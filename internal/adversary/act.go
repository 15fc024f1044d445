package adversary

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Act is one way to be hostile.
type Act struct {
	Name   string // "ring/never-release": who, and what it does
	Weight int    // how often it is drawn beside the others
	// Play does it until it is done or the stage is over. An error says that
	// the daemon did what it must not: that it refused is none.
	Play func(*Stage) error
}

// Acts are all acts there are.
var Acts = slices.Concat(ringActs, releaseActs, bellActs, controlActs, packetActs, streamActs, adminActs,
	peerActs, kernelActs, answerActs, volumeActs, roceActs, nbdActs, httpActs)

// Choose returns the acts of the given names; a name that ends in "/" stands
// for all that begin with it. No names: all of them. Those in without are left out.
func Choose(names, without []string) ([]Act, error) {
	for _, n := range slices.Concat(names, without) {
		if !slices.ContainsFunc(Acts, func(a Act) bool { return a.is(n) }) {
			return nil, fmt.Errorf("adversary: there is no act %q", n)
		}
	}
	var out []Act
	for _, a := range Acts {
		if (len(names) == 0 || slices.ContainsFunc(names, a.is)) && !slices.ContainsFunc(without, a.is) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("adversary: no act is left")
	}
	return out, nil
}

func (a Act) is(name string) bool {
	return a.Name == name || strings.HasSuffix(name, "/") && strings.HasPrefix(a.Name, name)
}

// draw picks one by weight.
func draw(rng *rand.Rand, acts []Act) Act {
	sum := 0
	for _, a := range acts {
		sum += a.Weight
	}
	at := rng.IntN(sum)
	for _, a := range acts {
		if at -= a.Weight; at < 0 {
			return a
		}
	}
	panic("adversary: weights do not add up")
}
