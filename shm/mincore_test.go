package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUsable: where a filter of system calls refuses mincore there can be no regions, and the reason is told; here there can.
func TestUsable(t *testing.T) {
	if err := Usable(); err != nil {
		t.Error(err)
	}
	for e, want := range map[unix.Errno]bool{0: true, unix.ENOSYS: false, unix.EPERM: false, unix.EACCES: false, unix.EAGAIN: true, unix.ENOMEM: true} {
		if err := usable(e); (err == nil) != want || err != nil && !errors.Is(err, e) {
			t.Errorf("%v: %v", e, err)
		}
	}
}
