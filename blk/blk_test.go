package blk_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/blktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newMem(t *testing.T, o blk.MemOptions) *blk.Mem {
	t.Helper()
	if o.Size == 0 {
		o.Size = blktest.Size
	}
	m, err := blk.NewMem(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tempFile makes a sparse file of n bytes and returns its path.
func tempFile(t *testing.T, n int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
	return path
}

func openFile(t *testing.T, o blk.FileOptions) *blk.File {
	t.Helper()
	f, err := blk.OpenFile(tempFile(t, blktest.Size), o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// openTmpfs makes a file where the kernel refuses RWF_NOWAIT and ZERO_RANGE.
func openTmpfs(t *testing.T) blk.Device {
	dir, err := os.MkdirTemp("/dev/shm", "rdsd")
	if err != nil {
		t.Skipf("elsewhere: no tmpfs at /dev/shm: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, blktest.Size); err != nil {
		t.Fatal(err)
	}
	f, err := blk.OpenFile(path, blk.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDevices: every device and every layer passes the same suite.
func TestDevices(t *testing.T) {
	for name, open := range map[string]func(*testing.T) blk.Device{
		"Mem":      func(t *testing.T) blk.Device { return newMem(t, blk.MemOptions{}) },
		"Mem4K":    func(t *testing.T) blk.Device { return newMem(t, blk.MemOptions{LogicalBlock: 4096}) },
		"File":     func(t *testing.T) blk.Device { return openFile(t, blk.FileOptions{}) },
		"File4K":   func(t *testing.T) blk.Device { return openFile(t, blk.FileOptions{LogicalBlock: 4096, Workers: 1}) },
		"Tmpfs":    openTmpfs,
		"Stats":    func(t *testing.T) blk.Device { return blk.NewStats(openFile(t, blk.FileOptions{})) },
		"Split":    func(t *testing.T) blk.Device { return blk.Split(newMem(t, blk.MemOptions{})) },
		"Fault":    func(t *testing.T) blk.Device { return blk.NewFault(newMem(t, blk.MemOptions{}), 1) },
		"Volatile": func(t *testing.T) blk.Device { return blk.NewVolatile(newMem(t, blk.MemOptions{}), 1) },
		"Stack": func(t *testing.T) blk.Device {
			return blk.NewStats(blk.Split(blk.NewFault(blk.NewVolatile(openFile(t, blk.FileOptions{}), 1), 1)))
		},
	} {
		t.Run(name, func(t *testing.T) { blktest.Run(t, open) })
	}
}
