package memtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rdsdtest.Remove()
	os.Exit(code)
}

// slack is what the resident memory may have beyond limits.memory_bytes.
const slack = 64 << 20

// watch looks at a daemon's resident memory every few milliseconds until the
// test ends, and fails the test when it was above its bound.
type watch struct {
	mu    sync.Mutex
	peak  int64 // guarded by mu
	parts string
}

func watchMemory(t *testing.T, d *rdsdtest.Daemon, limit int64) *watch {
	t.Helper()
	w := &watch{}
	pid := d.Pid()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		for {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
				w.look(string(b))
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		t.Logf("REPORT resident memory at most %.1f MiB of %d allowed: %s", float64(w.peak)/(1<<20), (limit+slack)>>20, w.parts)
		if w.peak > limit+slack {
			t.Errorf("resident memory was %.1f MiB; limits.memory_bytes and %d MiB are %d MiB (%s)", float64(w.peak)/(1<<20), slack>>20, (limit+slack)>>20, w.parts)
		}
	})
	return w
}

func (w *watch) look(status string) {
	var rss int64
	var parts []string
	for line := range strings.SplitSeq(status, "\n") {
		key, rest, _ := strings.Cut(line, ":")
		switch key {
		case "VmRSS", "RssAnon", "RssFile", "RssShmem":
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if key == "VmRSS" {
				rss = kb << 10
			} else {
				parts = append(parts, fmt.Sprintf("%s %.1f MiB", key, float64(kb)/1024))
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if rss > w.peak {
		w.peak, w.parts = rss, strings.Join(parts, ", ")
	}
}
