package volume

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// What a daemon keeps names files that it serves, and what it lost: whoever writes there exports what the daemon
// may read. The default is beside the daemon's socket, perhaps in a directory where everybody may make files. So
// what another user has made there is not believed, nor followed.

// OwnDirectory is an error, ErrPerm, if dir, or the link that it is, belongs to another user than the daemon's or root.
func OwnDirectory(dir string) error {
	var st unix.Stat_t
	for _, look := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} {
		if err := look(dir, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: dir, Err: err}
		}
		if !ours(&st) {
			return rdserr.With(rdserr.ErrPerm, "%s belongs to uid %d, who could write there what is to be believed; give it to uid %d, or name a directory of its own", dir, st.Uid, os.Geteuid())
		}
	}
	return nil
}

// ownFile is an error if f is no plain file of the daemon's user or root that nobody else may write.
func ownFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !ours(&st) || st.Mode&0o022 != 0 {
		return rdserr.With(rdserr.ErrPerm, "%s is no plain file of uid %d that nobody else may write, but of uid %d with mode %#o; see who made it", f.Name(), os.Geteuid(), st.Uid, st.Mode)
	}
	return nil
}

func ours(st *unix.Stat_t) bool { return st.Uid == 0 || st.Uid == uint32(os.Geteuid()) }

// openOwn opens a file that no link leads to, and that is the daemon's own.
func openOwn(name string, flag int, mode os.FileMode, open func(string, int, os.FileMode) (*os.File, error)) (*os.File, error) {
	f, err := open(name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, mode)
	if err == nil {
		if err = ownFile(f); err != nil {
			f.Close()
		}
	} else if errors.Is(err, unix.ELOOP) {
		err = rdserr.With(rdserr.ErrPerm, "%s is a link, which is not followed; see who made it", name)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}
