package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// listenUnix makes the clients' socket. The file gets its mode and group
// between bind and listen, when nobody can connect yet. A file left by a
// daemon that died is replaced; one behind which somebody answers is not.
//
// network is "unix" or "unixpacket".
func listenUnix(network, path string, mode fs.FileMode, group string) (net.Listener, error) {
	if strings.HasPrefix(path, "@") {
		return net.Listen(network, path)
	}
	kind := unix.SOCK_STREAM
	if network == "unixpacket" {
		kind = unix.SOCK_SEQPACKET
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("api.socket %s: its directory cannot be made: %w", path, err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("api.socket %s: %w", path, err)
	}
	defer unlock()
	if err := removeStale(network, path); err != nil {
		return nil, fmt.Errorf("api.socket %s: %w", path, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("api.socket %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // FileListener below has its own descriptor
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, fmt.Errorf("api.socket %s: bind: %w", path, err)
	}
	fail := func(what string, err error) (net.Listener, error) {
		os.Remove(path)
		return nil, fmt.Errorf("api.socket %s: %s: %w", path, what, err)
	}
	if group != "" {
		gid, err := lookupGroup(group)
		if err != nil {
			return fail("group", err)
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return fail("group "+group, err)
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		return fail("mode", err)
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return fail("listen", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return fail("listen", err)
	}
	st, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("api.socket %s: %w", path, err)
	}
	ul := &unixListener{UnixListener: l.(*net.UnixListener), path: path}
	ul.close = closeOnce(func() error {
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
		return errors.New("there is a file of another kind at that path; remove it or choose another path")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	if err == nil {
		c.Close()
		return errors.New("another daemon answers there; stop it, or give this one its own --socket")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether another daemon listens there: %w", err)
	}
	return os.Remove(path)
}

// lockDir keeps two daemons that start at once from removing each other's
// socket. The lock is on the directory itself: no file is left behind.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { d.Close() }, nil
}

// limitListener accepts at most n connections at a time; the next ones wait
// in the kernel's queue.
type limitListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	close func() error
}

func newLimitListener(l net.Listener, n int) *limitListener {
	ll := &limitListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
	ll.close = closeOnce(func() error {
		close(ll.done)
		return l.Close()
	})
	return ll
}

func (l *limitListener) Close() error { return l.close() }

func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &countedConn{Conn: c, release: closeOnce(func() error { <-l.slots; return nil })}, nil
}
