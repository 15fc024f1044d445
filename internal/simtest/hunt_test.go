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
// broken. mutants.sh runs it once for each rule.
func TestHunt(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("RDSD_MUTANT"))
	if n < 1 || n > mutant.Count {
		t.Skip("RDSD_MUTANT does not name a rule")
	}
	for s := int64(1); s <= int64(*seedsFlag); s++ {
		if r := Run(s, Options{}); r.Err != nil {
			text := r.Err.(*Violation).Text
			inv, _, _ := strings.Cut(text, ":")
			fmt.Printf("| %s | %d | %s | %s |\n", mutant.Names[n], s, inv, text)
			return
		}
	}
	t.Fatalf("rule %d, %s, is broken, and %d seeds did not show it", n, mutant.Names[n], *seedsFlag)
}
