//go:build !amd64 && !arm64

package reactor

import "golang.org/x/sys/unix"

// self is the thread's number: reactors stay locked to theirs.
func self() uintptr {
	n, _ := unix.RawSyscallNoError(unix.SYS_GETTID, 0, 0, 0)
	return n
}

const selfIsGoroutine = false
