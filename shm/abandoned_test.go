package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestAbandoned: the daemon's part is closed when nobody else has it, be it mapped, open
// or on its way to somebody.
func TestAbandoned(t *testing.T) {
	r, err := Create(testSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	try := func(want bool, what string) {
		t.Helper()
		if gone, certain := r.Abandoned(); gone != want || !certain {
			t.Errorf("%s: %v %v", what, gone, certain)
		}
	}
	fd, err := unix.FcntlInt(uintptr(r.LendFD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Lent()
	try(false, "open")
	c, err := Open(r.FD, fd, r.RegionBytes)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(pair[0], []byte{1}, unix.UnixRights(fd), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	try(false, "mapped, and on its way")
	c.Close()
	try(false, "on its way")
	unix.Close(pair[1])
	unix.Close(pair[0])
	try(true, "nobody has it")
	try(true, "once more")
	if r.ownFD != -1 {
		t.Error("not closed")
	}
}
