package shm

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// A ledger that is open is locked (flock), whatever ends its daemon: a second one at the same path
// would take the file away from the first, and the first to stop would remove the other's, with all
// that stands beside it. The new file is locked before it gets its name, and its name while it is
// made, path.new, is what daemons that start at once take turns by.

// ErrLedgerInUse says that another daemon has the ledger open, or is making one at its path.
var ErrLedgerInUse error = &Error{unix.EBUSY, "another daemon uses it"}

// create makes the file and gives it its name. Whoever has locked path.new is alone here: it
// is let go with the name, and the lock goes on to be the ledger's.
func (l *Ledger) create() error {
	fresh := l.path + ".new"
	fd, err := lockNew(fresh)
	if err != nil {
		return err
	}
	l.fd = fd
	named := false
	defer func() {
		if !named {
			os.Remove(fresh)
		}
	}()
	old, err := openOld(l.path)
	if err != nil {
		return err
	}
	defer func() { unix.Close(old) }() // -1: there is none
	if err := eintr.Again(func() error { return unix.Ftruncate(fd, int64(l.h.FileBytes)) }); err != nil {
		return tooLarge(err, l.h.FileBytes)
	}
	l.mem, err = unix.Mmap(fd, 0, int(l.h.FileBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return tooLarge(err, l.h.FileBytes)
	}
	// The tables are large and little of them is used, a page here and there. On a disk the first access to one would
	// bring as much around it as the disk reads ahead, 128 KiB to some MiB, which then are memory of the daemon; on a
	// tmpfs that gives huge pages unasked 2 MiB. What a kernel refuses of this costs memory alone.
	_ = unix.Madvise(l.mem, unix.MADV_RANDOM)
	_ = unix.Madvise(l.mem, unix.MADV_NOHUGEPAGE)
	l.base = unsafe.Pointer(unsafe.SliceData(l.mem))
	l.have = make([]uint64, l.h.FileBytes>>12/64+1)
	err = l.ensure(0, HeaderBytes)
	if errors.Is(err, unix.ENOMEM) && old >= 0 && os.Remove(l.path) == nil {
		// Nobody needs the old one any more, and a daemon that was killed must not keep the next one from starting.
		unix.Close(old)
		old = -1
		err = l.ensure(0, HeaderBytes)
	}
	if err != nil {
		return err
	}
	l.h.Put(l.mem)
	// The old one is locked until the name is the new one's: who waits for it finds that locked then.
	if err := os.Rename(fresh, l.path); err != nil {
		return err
	}
	named = true
	return nil
}

// lockNew makes a file and locks it. One that is left of a daemon that ended while it made its
// ledger is removed; ErrLedgerInUse: a daemon makes one now.
func lockNew(name string) (int, error) {
	for range 100 { // each time somebody else came in between
		fd, err := eintr.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == unix.EEXIST {
			if err := removeLeft(name); err != nil {
				return -1, err
			}
			continue
		}
		if err != nil {
			return -1, err
		}
		// Who saw it before it was locked has taken it for one that was left.
		if err := lockFile(fd); err != nil && err != unix.EWOULDBLOCK {
			unix.Close(fd)
			return -1, err
		} else if err == nil && isFile(fd, name) {
			return fd, nil
		}
		unix.Close(fd)
	}
	return -1, ErrLedgerInUse
}

// removeLeft removes what stands at the path of a new file, unless somebody has locked it.
func removeLeft(name string) error {
	fd, err := eintr.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		if err := lockFile(fd); err == unix.EWOULDBLOCK {
			return ErrLedgerInUse
		} else if err != nil {
			return err
		}
		if !isFile(fd, name) {
			return nil // it has been removed meanwhile, or has its name
		}
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("what is in the way of the new file cannot be removed: %w", err)
	}
	return nil
}

// lockFile takes the lock of an open file; EWOULDBLOCK: somebody has it. A file system that has
// no locks, or none for who can only read, has nothing to tell daemons apart by.
func lockFile(fd int) error {
	switch err := eintr.Again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err {
	case unix.EBADF, unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL:
		return nil
	default:
		return err
	}
}

// isFile reports whether path names the open file.
func isFile(fd int, path string) bool {
	var st, now unix.Stat_t
	return unix.Fstat(fd, &st) == nil && unix.Lstat(path, &now) == nil && st.Ino == now.Ino && st.Dev == now.Dev
}

// openOld opens and locks the ledger at path, if there is one, which may be replaced then; -1: there is none, or
// none that can be opened, as of a daemon that root ran by hand. It refuses what is no ledger of any version, for
// a path that was mistyped must not cost a file, and a ledger that is in use.
func openOld(path string) (int, error) {
	fd, err := eintr.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case err == unix.ENOENT || err == unix.EACCES:
		return -1, nil
	case err == unix.ELOOP || err == unix.ENXIO: // a symbolic link; a socket
		return -1, errNoLedger
	case err != nil:
		return -1, err
	}
	if err = replaceable(fd); err == nil {
		err = lockFile(fd)
	}
	if err == unix.EWOULDBLOCK {
		err = ErrLedgerInUse
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

var errNoLedger = fmt.Errorf("%w: there is something that is no ledger at that path; remove it or choose another path", unix.EEXIST)

// replaceable is nil for a ledger, of whatever version.
func replaceable(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errNoLedger
	}
	var head [len(ledgerMagic)]byte
	err := eintr.Again(func() error {
		_, err := unix.Pread(fd, head[:], 0)
		return err
	})
	if err != nil {
		return err
	}
	// After the machine went down one on a disk may be empty, or begin with zeros.
	if head != ledgerMagic && head != [len(ledgerMagic)]byte{} {
		return errNoLedger
	}
	return nil
}

// Close unmaps the ledger; the file stays.
func (l *Ledger) Close() error {
	if l == nil {
		return nil
	}
	var err error
	if l.mem != nil {
		err = unix.Munmap(l.mem)
		l.mem = nil
	}
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
	return err
}

// Remove closes the ledger and removes its file, unless there is another in its place.
func (l *Ledger) Remove() error {
	if l == nil {
		return nil
	}
	if l.fd >= 0 && isFile(l.fd, l.path) { // while it is locked: nobody else replaces it
		os.Remove(l.path)
	}
	return l.Close()
}
