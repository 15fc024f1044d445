//go:build !amd64 && !arm64

package reactor

import "golang.org/x/sys/unix"

// self is the thread's number. A goroutine that is not locked may be on any
// thread but a reactor's.
func self() uintptr {
	n, _ := unix.RawSyscallNoError(unix.SYS_GETTID, 0, 0, 0)
	return n
}
