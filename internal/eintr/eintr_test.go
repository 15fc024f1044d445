package eintr

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInterruptedCalls: a signal is no error of whoever asked, and every other error is.
func TestInterruptedCalls(t *testing.T) {
	for _, want := range []error{nil, unix.EIO} {
		n := 0
		err := Again(func() error {
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
