//go:build mutant

package mutant

import (
	"os"
	"strconv"
)

var on, _ = strconv.Atoi(os.Getenv("RDSD_MUTANT"))

// On reports whether rule n is broken.
func On(n int) bool { return n == on }
