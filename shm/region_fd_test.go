package shm

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptorZero: a client that has no standard input may have a region at
// descriptor 0, which is closed like any other.
func TestDescriptorZero(t *testing.T) {
	stdin, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Skipf("elsewhere: there is no standard input: %v", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	defer func() {
		if err := unix.Dup3(stdin, 0, 0); err != nil {
			t.Error(err)
		}
		unix.Close(stdin)
	}()
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		t.Fatal(err)
	}
	r := &Region{FD: 0}
	r.closeFD()
	if _, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != unix.EBADF || r.FD != -1 {
		t.Errorf("the descriptor is open still: %v, %d", err, r.FD)
	}
	r.closeFD() // closes nothing that is not its own any more
	if r.FD != -1 {
		t.Errorf("closed again: %d", r.FD)
	}
}
