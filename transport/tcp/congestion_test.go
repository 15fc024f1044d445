package tcp

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCongestion: all four ends have the one that was asked for, which is not the
// kernel's default; one that does not exist changes nothing.
func TestCongestion(t *testing.T) {
	def := congestionOf(t, defaultSocket(t))
	name := "reno" // every kernel has it, and lets anybody use it
	if def == name {
		name = "cubic"
		if err := CheckCongestion(name); err != nil {
			t.Skip("the kernel's default is reno, and nothing else is to be had: ", err)
		}
	}
	for _, c := range []struct{ set, want string }{{name, name}, {"", def}, {"nonesuch", def}} {
		p := newProvider(t)
		p.Congestion = c.set
		x, y := pair(t, p, 1)
		a, b := onePair(t, p, netip.MustParseAddr("127.0.0.95"))
		for what, fd := range map[string]int{"dialled": descriptor(&x[0].l.socket), "accepted": descriptor(&y[0].l.socket),
			"one-sided, dialled": descriptor(&a.l.socket), "one-sided, accepted": descriptor(&b.l.socket)} {
			if got := congestionOf(t, fd); got != c.want {
				t.Errorf("%q was asked for, the link that was %s has %q, want %q", c.set, what, got, c.want)
			}
		}
	}
	if err := CheckCongestion("nonesuch"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("one that does not exist: %v", err)
	}
	if err := CheckCongestion(name); err != nil {
		t.Error(err)
	}
}

func defaultSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func congestionOf(t *testing.T, fd int) string {
	t.Helper()
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		t.Fatal(err)
	}
	return name
}
