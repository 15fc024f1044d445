package blk

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInterruptedCalls: a signal is no error of whoever asked, and every other error is.
func TestInterruptedCalls(t *testing.T) {
	for _, want := range []error{nil, unix.EIO} {
		n := 0
		err := again(func() error {
			if n++; n < 4 {
				return unix.EINTR
			}
			return want
		})
		if err != want || n != 4 {
			t.Errorf("%v after %d calls, want %v after 4", err, n, want)
		}
	}
}

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
