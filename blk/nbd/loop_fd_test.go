package nbd

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
)

// TestNoDescriptorForALoop: a connection that a reactor cannot have is left as it was,
// for goroutines to serve.
func TestNoDescriptorForALoop(t *testing.T) {
	r, err := reactor.New(reactor.Options{CPU: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := connOf(t, fds[0]), connOf(t, fds[1])
	defer theirs.Close()
	defer ours.Close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	free, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	lowest := uint64(free.Fd())
	free.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: lowest, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	l := newLoop(&conn{}, ours, r)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if l != nil {
		t.Fatal("a loop without a descriptor")
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if newLoop(&conn{}, a, r) != nil {
		t.Error("a loop of what is no socket")
	}
	if _, err := ours.Write([]byte("x")); err != nil {
		t.Errorf("the connection was closed: %v", err)
	}
}
