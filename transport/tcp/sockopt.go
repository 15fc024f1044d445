package tcp

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Keep-alive as the kernel's rds_tcp has it (net/rds/tcp.c): 5 s idle, then 5
// probes 5 s apart. Unacknowledged data does not wait for TCP's own limit of a
// quarter of an hour.
const (
	keepAlive   = 5 // seconds, and number of probes
	userTimeout = 30 * time.Second
)

func setOptions(raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) {
		for _, o := range []struct{ level, name, value int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAlive},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAlive},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout / time.Millisecond)},
		} {
			if err == nil {
				err = unix.SetsockoptInt(int(fd), o.level, o.name, o.value)
			}
		}
	}); e != nil {
		return e
	}
	return err
}

// Acked is how many of our bytes the peer's TCP acknowledged.
func (l *Link) Acked() uint64 { return l.tcpAcked() - l.ackBase }

// tcpAcked reads tcpi_bytes_acked, which counts the SYN on the connecting side.
func (l *Link) tcpAcked() (n uint64) {
	l.raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Bytes_acked
		}
	})
	return n
}

// writev and readv on non-blocking descriptors: they never block, so the
// runtime need not be told (RawSyscall).
func writev(fd int, iov []unix.Iovec) (int, error) {
	n, _, e := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func readv(fd int, iov []unix.Iovec) (int, error) {
	n, _, e := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
