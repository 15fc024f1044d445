package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore tells of each page of b whether it is in memory (mincore(2)): bit 0 of pages.
func mincore(b []byte, pages []byte) bool {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	return e == 0
}
