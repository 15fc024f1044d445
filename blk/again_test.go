package blk

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInterruptedResize: an export gets its new size although signals interrupt the
// calls that open it and change it.
func TestInterruptedResize(t *testing.T) {
	left := 3
	interrupt := func() bool { left--; return left >= 0 }
	was := ftruncate
	defer func() { ftruncate = was }()
	ftruncate = func(fd int, n int64) error {
		if interrupt() {
			return unix.EINTR
		}
		return was(fd, n)
	}
	f, _ := testFile(t, 1<<20, FileOptions{})
	if err := f.Resize(2 << 20); err != nil || f.Info().Size != 2<<20 {
		t.Errorf("%v, %d bytes", err, f.Info().Size)
	}
	if left >= 0 {
		t.Error("no call was interrupted")
	}
}
