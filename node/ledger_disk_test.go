package node

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLedgerOnADisk: the daemon warns of a ledger that is not in memory, and of no other.
func TestLedgerOnADisk(t *testing.T) {
	shared, err := os.MkdirTemp("/dev/shm", "rdsd-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(shared)
	seen := map[bool]bool{}
	for _, dir := range []string{shared, t.TempDir(), "."} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		memory := st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
		if seen[memory] {
			continue
		}
		seen[memory] = true
		path, err := filepath.Abs(filepath.Join(dir, "test.ledger"))
		if err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(t)
		cfg.API.Ledger = path
		var logs bytes.Buffer
		n, err := New(cfg, slog.New(slog.NewTextHandler(&logs, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := startNode(t, n)(); err != nil { // the ledger goes with it
			t.Fatal(err)
		}
		if warned := strings.Contains(logs.String(), "api.ledger is on a disk"); warned == memory {
			t.Errorf("%s, in memory: %v, warned: %v", dir, memory, warned)
		}
	}
	if len(seen) < 2 {
		t.Skip("there is no disk, or no tmpfs, here")
	}
}
