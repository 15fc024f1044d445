package shm

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore tells of each page of b whether it is in memory (mincore(2)): bit 0 of pages.
func mincore(b []byte, pages []byte) bool { return askMincore(b, pages) == 0 }

func askMincore(b []byte, pages []byte) unix.Errno {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	return e
}

// Usable is why a daemon may have no regions here, nil if it may: it has to be told which pages a client has made, and
// filters of system calls may refuse that. What is found out first holds for the process.
func Usable() error { return usableHere() }

var usableHere = sync.OnceValue(func() error {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil // memory is lacking: the region will say so
	}
	defer unix.Munmap(b)
	return usable(askMincore(b, make([]byte, 1)))
})

func usable(e unix.Errno) error {
	switch e {
	case unix.ENOSYS, unix.EPERM, unix.EACCES:
		return os.NewSyscallError("mincore", e)
	}
	return nil
}
