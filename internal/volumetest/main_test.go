package volumetest

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/ahead"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// What make soak sets higher.
var (
	traffic   = flag.Duration("volumetest.traffic", 20*time.Second, "how long paths are cut again and again")
	kills     = flag.Int("volumetest.kills", 100, "how often a daemon of each sort is killed")
	ghosts    = flag.Int("volumetest.ghosts", 50, "how many writes are held on dying paths")
	rdmaShare = flag.Int("volumetest.rdma", 5, "of what is done to paths over TCP, one in so many is done to those over RDMA")
	stall     = flag.Duration("volumetest.stall", 3*time.Second, "how long a store stalls")
)

// some is n, or a few for go test -short.
func some(n int) int {
	if testing.Short() {
		return max(n/20, 1)
	}
	return n
}

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "store" {
		if err := storeMain(); err != nil {
			fmt.Fprintln(os.Stderr, "store:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ahead.Run()
	flag.Parse()
	flag.Set("test.parallel", "8") // most of what runs waits
	code := m.Run()
	rdsdtest.Remove()
	os.Exit(code)
}
