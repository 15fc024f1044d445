//go:build mutant

package rtrs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/mutant"
)

// TestHunt looks for a seed in which the rule that RDSD_MUTANT breaks is seen to
// be broken; mutants.sh runs it for each. Without one it fails on what it finds.
func TestHunt(t *testing.T) {
	rule, _ := strconv.Atoi(os.Getenv("RDSD_MUTANT"))
	n := *simSeeds
	if n == 0 {
		n = 600
	}
	for seed := int64(1); seed <= int64(n); seed++ {
		bad := ghostSeed(seed, false)
		world := "ghost"
		if bad == "" {
			_, bad = runSeed(seed, false)
			world = "seed"
		}
		if bad == "" {
			continue
		}
		_, bad, _ = strings.Cut(bad, ": ")
		if rule == 0 {
			t.Fatalf("%s %d: %s", world, seed, bad)
		}
		fmt.Printf("%s\t%s %d\t%s\n", mutant.RTRSNames[rule-mutant.RTRSNoFence], world, seed, bad)
		return
	}
	if rule != 0 {
		t.Fatalf("rule %d was broken and %d seeds did not notice", rule, n)
	}
}

func ghostSeed(seed int64, trace bool) string {
	g := newGhost(seed, trace)
	return g.try(g.run)
}
