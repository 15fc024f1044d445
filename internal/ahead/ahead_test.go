package ahead

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRun: every thread is ahead, those that come later and those of other programs too.
func TestRun(t *testing.T) {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		t.Skipf("elsewhere: no niceness below 0 is allowed: %v", err)
	}
	Run()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, _ := strconv.Atoi(thread.Name())
		// The system call gives 20 less it.
		if got, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && 20-got != niceness {
			t.Errorf("thread %d has niceness %d", tid, 20-got)
		}
	}
	if out, err := exec.Command("nice").Output(); err != nil || strings.TrimSpace(string(out)) != strconv.Itoa(niceness) {
		t.Errorf("a program started has niceness %s, %v", out, err)
	}
}
