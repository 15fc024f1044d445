package blk

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A file system in memory (tmpfs) refuses RWF_NOWAIT, and waits for nothing but a page that
// was swapped out, or that is not there yet. So its files are mapped, and the kernel is asked
// which pages are in memory (mincore(2): mm/mincore.c of Linux looks into the page cache, for
// pages that were swapped out too). The mapping is never read, so that a file made shorter
// faults nobody and no page counts as the daemon's.
//
// A page may be swapped out between the question and the read. Then the read waits for the
// swap: a moment, on a machine that is short of memory, and never for another's store.
type resident struct {
	mapping atomic.Pointer[mapping]
}

// mapping is address space of whole pages, in which only mincore looks.
type mapping struct{ at, bytes uintptr }

// mostPages bounds what is asked at once, and where the answer is kept: inlineRead bytes, and
// one page more as a request may begin within one.
const mostPages = inlineRead/4096 + 1

// mapResident maps a file of that size, if asking about it helps. Without the mapping workers read.
func (f *File) mapResident(size uint64) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	// Of files that it may not write, and that are not its own, a process is told that all
	// is in memory (can_do_mincore).
	if f.block || unix.Fstatfs(f.fd, &fs) != nil || fs.Type != unix.TMPFS_MAGIC ||
		fstat(f.fd, &st) != nil || f.opts.ReadOnly && int(st.Uid) != unix.Geteuid() {
		return
	}
	page := uint64(unix.Getpagesize())
	m := &mapping{bytes: uintptr((size + page - 1) &^ (page - 1))}
	if m.bytes > 0 {
		var e unix.Errno
		m.at, _, e = unix.Syscall6(unix.SYS_MMAP, 0, m.bytes, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE, uintptr(f.fd), 0)
		if e != 0 {
			return // the former one is right as far as it goes
		}
	}
	f.unmap(f.resident.mapping.Swap(m))
}

// unmap lets go of address space. Who asks about it at this moment is told that it is not
// there, or by misfortune about another mapping, and nothing worse: nobody reads it.
func (f *File) unmap(m *mapping) {
	if m != nil && m.bytes > 0 {
		_, _, _ = unix.Syscall(unix.SYS_MUNMAP, m.at, m.bytes, 0) // its arguments are mmap's
	}
}

// isResident reports whether all pages of n bytes at off were in memory a moment ago.
func (f *File) isResident(off uint64, n int) bool {
	m := f.resident.mapping.Load()
	page := uint64(unix.Getpagesize())
	first, last := off&^(page-1), (off+uint64(n)+page-1)&^(page-1)
	if m == nil || last > uint64(m.bytes) || (last-first)/page > mostPages {
		return false
	}
	var pages [mostPages]byte
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, m.at+uintptr(first), uintptr(last-first), uintptr(unsafe.Pointer(&pages))); e != 0 {
		return false
	}
	for _, p := range pages[:(last-first)/page] {
		if p&1 == 0 {
			return false
		}
	}
	return true
}
