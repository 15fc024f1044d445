package nbd

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpinEnds: however long a connection may spin, a read of nothing comes back and says
// so, for the connection to be idle; it is not parked in there. Who does not spin looks once.
func TestSpinEnds(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	long := time.Now().Add(time.Hour)
	for _, c := range []struct {
		what  string
		s     rawStream
		alone string // what becomes of the time from when on spinning is worth trying again
	}{
		{"no spinning", rawStream{quick: true}, "unset"},
		{"the last wait was long", rawStream{spin: 1}, "unset"},
		{"others want the processor", rawStream{spin: time.Hour, quick: true, alone: long}, "kept"},
		{"two looks take longer than four times the spin", rawStream{spin: 1, quick: true}, "set"},
		{"until the spin is over", rawStream{spin: time.Millisecond, quick: true}, ""},
	} {
		b, s := make([]byte, 4), &c.s
		s.riov[0].Base, s.rn = &b[0], 1
		s.riov[0].SetLen(len(b))
		if !s.tryRead(uintptr(fds[0])) || s.rerr != errAgain {
			t.Errorf("%s: parked, or %v; want %v", c.what, s.rerr, errAgain)
		}
		switch c.alone {
		case "unset":
			if !s.alone.IsZero() {
				t.Errorf("%s: it looked more than once", c.what)
			}
		case "kept":
			if s.alone != long {
				t.Errorf("%s: it looked more than once", c.what)
			}
		case "set":
			if s.alone.IsZero() {
				t.Errorf("%s: it is tried again at once", c.what)
			}
		}
		if _, err := unix.Write(fds[1], []byte("four")); err != nil {
			t.Fatal(err)
		}
		if !s.tryRead(uintptr(fds[0])) || s.rerr != nil || s.got != 4 || string(b) != "four" {
			t.Errorf("%s: %d bytes, %q, %v", c.what, s.got, b, s.rerr)
		}
	}
}
