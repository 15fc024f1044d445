package blk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/rdserr"
)

// Root is a directory that is held open. Names that come from elsewhere (a
// client, the network) are opened below it and never become a path: no
// component may be "..", none may be a symbolic link.
type Root struct {
	path string

	holding sync.Mutex // one asks the file system at a time; before mu
	mu      sync.Mutex
	fd      int  // guarded by mu; -1: it is not held
	closed  bool // guarded by mu
}

// OpenRoot holds the directory at path, which is the administrator's word:
// symbolic links on the way to it are followed.
func OpenRoot(path string) (*Root, error) {
	r := NewRoot(path)
	if err := r.Hold(); err != nil {
		return nil, err
	}
	return r, nil
}

// NewRoot is OpenRoot for a directory that is not held yet: Hold does that, or who opens
// something below it first.
func NewRoot(path string) *Root { return &Root{path: path, fd: -1} }

// Hold holds the directory, if it is not held yet.
func (r *Root) Hold() error {
	_, err := r.held()
	return err
}

// held is the descriptor of the directory.
func (r *Root) held() (fd int, err error) {
	if fd, err = r.is(); fd >= 0 || err != nil {
		return fd, err
	}
	r.holding.Lock()
	defer r.holding.Unlock()
	if fd, err = r.is(); fd >= 0 || err != nil {
		return fd, err
	}
	if fd, err = openRoot(r.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &os.PathError{Op: "open export root", Path: r.path, Err: err}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed { // meanwhile: Close waits for no file system
		unix.Close(fd)
		return -1, &os.PathError{Op: "open export root", Path: r.path, Err: os.ErrClosed}
	}
	r.fd = fd
	return fd, nil
}

// is is held without asking the file system; -1: it is not held.
func (r *Root) is() (fd int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return -1, &os.PathError{Op: "open export root", Path: r.path, Err: os.ErrClosed}
	}
	return r.fd, nil
}

// openRoot stands for eintr.Open in tests of file systems that stand still.
var openRoot = eintr.Open

// Close lets the directory go. Files opened below it stay open.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd := r.fd
	r.fd, r.closed = -1, true
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}

// CheckName tells whether a name may be looked up below a root: relative, of
// components of 1 to 255 bytes, none of them "." or "..".
func CheckName(name string) error {
	if name == "" || len(name) > 4095 || strings.IndexByte(name, 0) >= 0 {
		return rdserr.With(rdserr.ErrInvalid, "volume name %.40q: want 1 to 4095 bytes without NUL", name)
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "":
			return rdserr.With(rdserr.ErrInvalid, "volume name %.40q: want a relative name without empty parts", name)
		case part == "." || part == "..":
			return rdserr.With(rdserr.ErrInvalid, "volume name %.40q: %q is not allowed in it", name, part)
		case len(part) > unix.NAME_MAX:
			return rdserr.With(rdserr.ErrInvalid, "volume name %.40q: a part has %d bytes; at most %d", name, len(part), unix.NAME_MAX)
		}
	}
	return nil
}

// lookup finds a name below the root without opening the file: an O_PATH descriptor, so
// that a device that acts on being opened does not.
func (r *Root) lookup(name string) (int, error) {
	if err := CheckName(name); err != nil {
		return -1, err
	}
	at, err := r.held()
	if err != nil {
		return -1, err
	}
	var fd int
	err = eintr.Again(func() (err error) {
		fd, err = openat2(at, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		return err
	})
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // Linux before 5.6, or a filter that does not know it
		fd, err = walk(at, name)
	}
	if errors.Is(err, unix.ELOOP) {
		return -1, rdserr.With(rdserr.ErrInvalid, "volume name %.40q: a symbolic link, or behind one; want a regular file or a block device", name)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open volume", Path: name, Err: err}
	}
	return fd, nil
}

// walk is lookup below root without openat2: component by component.
func walk(root int, name string) (int, error) {
	parts := strings.Split(name, "/")
	at := root
	for i, part := range parts {
		flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if i < len(parts)-1 {
			flags |= unix.O_DIRECTORY
		}
		var fd int
		err := eintr.Again(func() (err error) {
			fd, err = unix.Openat(at, part, flags, 0)
			return err
		})
		if at != root {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = fd
	}
	return at, nil
}

// openat2 stands for unix.Openat2 in tests of kernels that have none.
var openat2 = unix.Openat2

// reopen opens the file that an O_PATH descriptor names, if it is a regular file or a block
// device, and closes the descriptor. quiet says that a read through it does not set the
// time of the last access. Where it does, a read that the page cache can answer waits for
// the journal all the same, RWF_NOWAIT or not (file_accessed in mm/filemap.c of Linux).
func reopen(pathFd int, name string, flags int) (fd int, st *unix.Stat_t, quiet bool, err error) {
	defer unix.Close(pathFd)
	st = new(unix.Stat_t)
	if err := unix.Fstat(pathFd, st); err != nil {
		return -1, nil, false, &os.PathError{Op: "stat volume", Path: name, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFBLK:
	case unix.S_IFLNK:
		return -1, nil, false, rdserr.With(rdserr.ErrInvalid, "%s is a symbolic link; want a regular file or a block device", name)
	case unix.S_IFDIR:
		return -1, nil, false, rdserr.With(rdserr.ErrInvalid, "%s is a directory; want a regular file or a block device", name)
	default:
		return -1, nil, false, rdserr.With(rdserr.ErrInvalid, "%s is neither a regular file nor a block device", name)
	}
	// Opening the path again could lead elsewhere by now. O_NONBLOCK, because a device may
	// wait for its medium.
	path := fmt.Sprintf("%s/%d", selfFDs, pathFd)
	flags |= unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err = eintr.Open(path, flags|unix.O_NOATIME, 0)
	if quiet = err == nil; errors.Is(err, unix.EPERM) { // only the owner may ask for that
		fd, err = eintr.Open(path, flags, 0)
	}
	if err != nil {
		if _, e := os.Lstat(path); e != nil { // what err says is of /proc, and the file is there
			return -1, nil, false, rdserr.With(rdserr.ErrNotSupported, "%s is there, and cannot be opened without /proc: %v", name, e)
		}
		return -1, nil, false, &os.PathError{Op: "open volume", Path: name, Err: err}
	}
	return fd, st, quiet || neverStamps(fd), nil
}

// selfFDs is where this process finds its descriptors by name; tests have none.
var selfFDs = "/proc/self/fd"

// neverStamps tells whether the file system of a descriptor keeps no times of
// access at all.
func neverStamps(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Flags&(unix.ST_NOATIME|unix.ST_RDONLY) != 0
}

// onNFS tells whether the file system of a descriptor is a mount of NFS.
func onNFS(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.NFS_SUPER_MAGIC
}
