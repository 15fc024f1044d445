package reactor

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestNameRefused: a thread that cannot be named works all the same.
func TestNameRefused(t *testing.T) {
	old := prctl
	t.Cleanup(func() { prctl = old })
	prctl = func(int, uintptr, uintptr, uintptr, uintptr) error { return unix.EPERM }
	r, err := New(Options{SpinFor: -1, CPU: -1, Name: "rds/0"})
	if err != nil {
		t.Fatal(err)
	}
	r.Close() // its thread has called prctl
}
