package slowclose

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Socket is a TCP socket whose last close takes until far, its other end, is closed, at the end of the test at the
// latest: it has data that far does not read, and SO_LINGER of an hour. The descriptor is the caller's to close.
func Socket(t testing.TB) (fd int, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})
	}
	if err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 1<<20); ; {
		if _, err := unix.Write(fd, full); err != nil {
			return fd, far
		}
	}
}
