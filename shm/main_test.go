package shm

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails when a goroutine is left; and with childEnv set this process is
// the daemon of TestCrashPoints.
func TestMain(m *testing.M) {
	if ledger := os.Getenv(childEnv); ledger != "" {
		fmt.Fprintln(os.Stderr, crashChild(ledger))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
