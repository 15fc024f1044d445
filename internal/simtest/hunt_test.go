//go:build mutant

package simtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/mutant"
)

// TestHunt runs seeds until one shows that the rule RDSD_MUTANT names is
// broken: of volumes in worlds that have them. mutants.sh runs it once for each
// rule.
func TestHunt(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("RDSD_MUTANT"))
	name := mutant.Name(n)
	if name == "" {
		t.Skip("RDSD_MUTANT does not name a rule")
	}
	first := int64(1)
	if n >= mutant.RTRSNoFence {
		first += volumeSeeds
	}
	for s := first; s < first+int64(*seedsFlag); s++ {
		if text := broken(s); text != "" {
			inv, _, _ := strings.Cut(text, ":")
			fmt.Printf("| %s | %d | %s | %s |\n", name, s, inv, text)
			return
		}
	}
	t.Fatalf("rule %d, %s, is broken, and %d seeds did not show it", n, name, *seedsFlag)
}

// broken says what seed s shows, "" if nothing. A core that gives up is found,
// too.
func broken(s int64) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint("panic: ", p)
		}
	}()
	if r := Run(s, Options{}); r.Err != nil {
		return r.Err.(*Violation).Text
	}
	return ""
}
