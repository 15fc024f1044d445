package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// Errors that a caller may want to tell apart; they come with the path and a reason.
var (
	ErrInUse    = errors.New("another daemon answers there")
	ErrNoSocket = errors.New("there is a file of another kind at that path; remove it or choose another path")
)

// KeepGroup is for a socket whose file stays with the group that it is made with.
const KeepGroup = -1

// mostPath is how many bytes of a path a socket address holds.
const mostPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Listen makes a socket that clients connect to. A file left by a daemon that died is
// replaced; one behind which somebody answers is not (ErrInUse), nor is one of another kind
// (ErrNoSocket). The directory is made if it is not there. A path that begins with @ has no
// file.
//
// The file is made as path~ and gets its name when it has its mode and group and somebody
// listens: who connects before finds nothing, and tries again, and not a socket that it may not
// use. Where an address has no room for the ~ it is made in its place. The kernel goes
// on showing the name it was made with (ss, getpeername).
//
// network is "unix" or "unixpacket". The kernel refuses descriptors that clients send,
// where it knows how to (RefuseRights).
func Listen(network, path string, mode fs.FileMode, gid int) (net.Listener, error) {
	if strings.HasPrefix(path, "@") {
		c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { RefuseRights(int(fd)) })
		}}
		return c.Listen(context.Background(), network, path)
	}
	kind := unix.SOCK_STREAM
	if network == "unixpacket" {
		kind = unix.SOCK_SEQPACKET
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("socket %s: its directory cannot be made: %w", path, err)
	}
	unlock, err := lockSocket(path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer unlock()
	made := path + "~"
	if len(made) > mostPath {
		made = path
	}
	for _, name := range []string{path, made} {
		if err := removeStale(network, name); err != nil {
			return nil, fmt.Errorf("socket %s: %w", name, err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileListener below has its own descriptor
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: made}); err != nil {
		return nil, fmt.Errorf("socket %s: bind: %w", path, err)
	}
	fail := func(what string, err error) (net.Listener, error) {
		os.Remove(made)
		return nil, fmt.Errorf("socket %s: %s: %w", path, what, err)
	}
	if gid != KeepGroup {
		if err := os.Chown(made, -1, gid); err != nil {
			return fail(fmt.Sprintf("group %d, of which the daemon has to be a member", gid), err)
		}
	}
	if err := os.Chmod(made, mode); err != nil {
		return fail("mode", err)
	}
	RefuseRights(fd)
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return fail("listen", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fail("listen", err)
	}
	st, err := os.Lstat(made)
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		l.Close()
		return fail("its name", err)
	}
	ul := &unixListener{UnixListener: l.(*net.UnixListener), path: path}
	ul.close = sync.OnceValue(func() error {
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, st) {
			os.Remove(path)
		}
		return ul.UnixListener.Close()
	})
	return ul, nil
}

// unixListener removes its file when closed, unless another daemon has put its own there.
type unixListener struct {
	*net.UnixListener
	path  string
	close func() error
}

func (l *unixListener) Close() error { return l.close() }

// Addr shows the path (the descriptor came by way of a file).
func (l *unixListener) Addr() net.Addr {
	return &net.UnixAddr{Name: l.path, Net: l.UnixListener.Addr().Network()}
}

// removeStale removes a socket nobody listens on.
func removeStale(network, path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSocket == 0 {
		return ErrNoSocket
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	if err == nil {
		c.Close()
		return ErrInUse
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether another daemon listens there: %w", err)
	}
	return os.Remove(path)
}

// lockPatience is how long another daemon may take to make its socket.
var lockPatience = 5 * time.Second

// lockSocket keeps two daemons that start at once from removing each other's
// socket. The lock is on a file of the daemon's own user, which nobody else can
// open, so that nobody else can hold it; it is there for a moment only.
func lockSocket(path string) (unlock func(), err error) {
	name := path + ".lock"
	for until := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		f, err := tryLock(name)
		if err == nil {
			return func() {
				os.Remove(name) // before the lock is let go: who opens it now finds another file
				f.Close()
			}, nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("another process has held the lock %s for %v; is a daemon stopped in the middle of its start?", name, lockPatience)
		}
	}
}

// tryLock takes the lock; EAGAIN: somebody has it, or the file has gone meanwhile.
func tryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the lock beside it: %w", err)
	}
	var st, now unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0:
			err = fmt.Errorf("%s is no lock of this user's: uid %d made it, with mode %#o; remove it, or use a directory of your own", name, st.Uid, st.Mode)
		default:
			err = eintr.Again(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		}
	}
	if err == nil {
		// Who had it before has removed the file: a lock on that is worth nothing.
		if e := unix.Lstat(name, &now); e != nil || now.Ino != st.Ino || now.Dev != st.Dev {
			err = unix.EAGAIN
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// RefuseRights has the kernel refuse descriptors that are sent to a listening socket's
// connections, where it knows how to (Linux 6.16): whoever passed one decides how long its
// last close takes, and whoever reads a message would close it. It reports whether the kernel
// knows how to.
func RefuseRights(fd int) bool {
	const soPassRights = 83
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) == nil
}
