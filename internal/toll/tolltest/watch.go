package tolltest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// side squared is how often Watch has a descriptor watched.
const side = 450

// Watch has fd watched two hundred thousand times until the test ends: to wake all of
// them takes the kernel more than ten milliseconds. Each of 450 epoll sets has each of
// 450 duplicates, so that no limit of descriptors is in the way.
func Watch(t testing.TB, fd int) {
	t.Helper()
	var open []int
	t.Cleanup(func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	})
	keep := func(fd int, err error) int {
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, fd)
		return fd
	}
	var dups []int
	for range side {
		dups = append(dups, keep(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)))
	}
	for range side {
		set := keep(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
		for _, dup := range dups {
			if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, dup, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
