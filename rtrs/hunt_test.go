package rtrs

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var huntFlag = flag.Bool("rtrs.hunt", false, "TestHunt looks for a rule that is broken in this program")

// TestHunt looks for a seed in which a broken rule is seen to be broken. It is for
// a test program in which one is (go run ./internal/mutate -rules), and fails when
// no seed shows anything.
func TestHunt(t *testing.T) {
	if !*huntFlag {
		t.Skip("elsewhere: no rule is broken in this program; the phase of the mutants builds and runs those in which one is")
	}
	n := *simSeeds
	if n == 0 {
		n = 600
	}
	for seed := int64(1); seed <= int64(n); seed++ {
		bad, world := ghostSeed(seed, false), "ghost"
		if bad == "" {
			_, bad = runSeed(seed, false)
			world = "seed"
		}
		if bad == "" {
			continue
		}
		_, bad, _ = strings.Cut(bad, ": ")
		fmt.Printf("found: %s %d | %s\n", world, seed, strings.ReplaceAll(bad, "\n", " "))
		return
	}
	t.Fatalf("%d seeds show nothing", n)
}

func ghostSeed(seed int64, trace bool) string {
	g := newGhost(seed, trace)
	return g.try(g.run)
}
