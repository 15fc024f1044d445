package volume

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// Design notes.
//
// What the state says of writers and failed syncs is believed as long as the machine is not started again. A file that
// was put back meanwhile, out of a backup or a snapshot, is older than what was written since: a session that another has
// overtaken would not be told, and what it has waiting would go over that one's. Nothing in the file can tell, nor
// anything beside it, which is put back with it. So each state has a number (state.Writes), and the last one stands
// elsewhere as well, in the directory of the sockets, which a machine forgets with its start. It is written after the state
// is: where it is missing, or behind, nothing is said, and a state that is as new as it is never taken for an old one.

// Mark keeps the number of the last state elsewhere, until the machine is started again.
type Mark interface {
	Read() (boot string, n uint64) // n 0: nothing is known
	Write(boot string, n uint64)   // as well as it can
}

// fileMark is a Mark: a file beside the sockets of mappings.
type fileMark string

// newFileMark is that of the state in stateDir, kept in dir. Another daemon of the same dir has another state.
func newFileMark(dir, stateDir string) Mark {
	h := fnv.New64a()
	io.WriteString(h, filepath.Clean(stateDir))
	return fileMark(filepath.Join(dir, fmt.Sprintf("volumes-%016x.mark", h.Sum64())))
}

func (m fileMark) Read() (boot string, n uint64) {
	f, err := openOwn(string(m), os.O_RDONLY, 0, os.OpenFile) // the directory may be anybody's
	if err != nil {
		return "", 0
	}
	defer f.Close()
	if _, err := fmt.Fscan(io.LimitReader(f, 128), &boot, &n); err != nil {
		return "", 0
	}
	return boot, n
}

func (m fileMark) Write(boot string, n uint64) {
	os.Remove(string(m) + ".new") // of a write that did not come to its end
	f, err := os.OpenFile(string(m)+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	_, err = fmt.Fprintln(f, boot, n)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(string(m)+".new", string(m))
	}
	if err != nil {
		os.Remove(string(m) + ".new")
	}
}

// errGone is of a state that is not there although one was written since the machine was started.
var errGone = rdserr.With(rdserr.ErrInvalid, "%s is gone, and was written since the machine was started: what it said of writers and failed syncs is not known", stateFile)

// readMarked is readState, and errors where the mark says that what is there is not what was written last. The numbers go on from the
// mark. A file that somebody has changed by hand, and said so by taking its sum away, is believed, and so is one of an
// earlier version, which has no number.
func (s *store) readMarked(d Disk) (st state, err error) {
	b, err := d.Read()
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil {
		err = fmt.Errorf("volumes.state_dir: %w", err)
	} else {
		st, err = parseState(b)
	}
	if err == nil {
		s.writes = st.Writes
	}
	if s.mark == nil {
		return st, err
	}
	boot, n := s.mark.Read()
	if boot != s.boot || n == 0 {
		return st, err
	}
	s.writes = max(s.writes, n)
	_, _, sum := summed(b)
	switch {
	case gone:
		err = errGone
	case err == nil && sum && st.Writes > 0 && st.Writes < n:
		err = rdserr.With(rdserr.ErrInvalid, "%s is not the last one that was written, but older, as one out of a backup is: what was written of volumes since it does not say (docs/volumes.md, What is promised, says how to take its exports alone)", stateFile)
	}
	return st, err
}
