//go:build mutant

package conn

import (
	"os"
	"strconv"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("RDSD_MUTANT"))

func mutant(n int) bool { return n == mutantOn }
