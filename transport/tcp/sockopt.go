package tcp

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Keep-alive as the kernel's rds_tcp has it (net/rds/tcp.c): 5 s idle, then 5
// probes 5 s apart. Unacknowledged data does not wait for TCP's own limit of a
// quarter of an hour.
const (
	keepAlive   = 5 // seconds, and number of probes
	userTimeout = 30 * time.Second
)

func setOptions(fd, buffer int) error {
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAlive},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAlive},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAlive},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout / time.Millisecond)},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if buffer == 0 {
		return nil
	}
	// Bytes on their way to a reader that has no turn yet must not stop the sender. With
	// equal buffers of 96 KiB 1 MiB datagrams were a fifth slower.
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_SNDBUF, buffer},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, buffer + buffer/3},
		// The window's limit was fixed with the connection, for the buffer that it had then: 64,088
		// bytes by Linux's defaults, less than a datagram of 64 KiB with its header, whose end
		// would wait until the receiver has read the rest and said so. Kernels from 6.6 on set it
		// anew with what arrives.
		{unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, buffer + buffer/3},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// acked reads tcpi_bytes_acked, which counts the SYN on the connecting side.
func acked(fd int) uint64 {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return info.Bytes_acked
}
