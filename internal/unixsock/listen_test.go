package unixsock

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "sock") }

func TestListenUnixModeAndGroup(t *testing.T) {
	path := filepath.Join(filepath.Dir(socketPath(t)), "new dir", "s")
	group := KeepGroup
	if os.Getuid() == 0 {
		group = 12345
	}
	l, err := Listen("unix", path, 0o640, group)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, want 0640", st.Mode())
	}
	if gid := st.Sys().(*syscall.Stat_t).Gid; group != KeepGroup && gid != 12345 {
		t.Errorf("group %d, want 12345", gid)
	}
	if l.Addr().String() != path {
		t.Errorf("Addr %v, want %s", l.Addr(), path)
	}
}

func TestListenUnixRefusesLiveDaemon(t *testing.T) {
	path := socketPath(t)
	l, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), "another daemon answers") {
		t.Errorf("second daemon: %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the live socket is gone: %v", err)
	}
}

func TestListenUnixReplacesStale(t *testing.T) {
	path := socketPath(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	l.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("not removed by Close: %v", err)
	}
}

func TestListenUnixKeepsOtherFiles(t *testing.T) {
	path := socketPath(t)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), "another kind") {
		t.Errorf("regular file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("file is now %q", b)
	}
}

// A daemon that lost its socket file to a newer one must not remove that.
func TestCloseKeepsSuccessorsSocket(t *testing.T) {
	path := socketPath(t)
	old, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	successor, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	old.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the successor's socket is gone: %v", err)
	}
}

func TestAbstractSocket(t *testing.T) {
	l, err := Listen("unix", "@rdsd-test-"+filepath.Base(filepath.Dir(socketPath(t))), 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// Whoever holds a lock on the socket's directory, or has put a file in the way, keeps no
// daemon waiting.
func TestLockIsNobodyElses(t *testing.T) {
	path := socketPath(t)
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if err := os.WriteFile(path+".lock", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path+".lock", 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), "no lock of this user's") {
		t.Errorf("a lock everybody can open: %v", err)
	}
	os.Remove(path + ".lock")
	if err := os.Symlink("/dev/null", path+".lock"); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil {
		t.Error("a link in the place of the lock was followed")
	}
}

// A lock that is held is waited for, and not for ever.
func TestLockIsWaitedFor(t *testing.T) {
	was := lockPatience
	defer func() { lockPatience = was }()
	path := socketPath(t)
	unlock, err := lockSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	lockPatience = 50 * time.Millisecond
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), "has held the lock") {
		t.Errorf("a held lock: %v", err)
	}
	lockPatience = was
	time.AfterFunc(50*time.Millisecond, unlock)
	l, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// Whatever cannot be done on the way to a socket is said, with the path, and leaves
// neither a socket nor a lock there.
func TestListenUnixFailures(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: other, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct{ what, path, want string }{
		{"a file in the place of its directory", filepath.Join(file, "x", "s"), "directory cannot be made"},
		{"a file in the place of its own directory", filepath.Join(file, "s"), ""},
		{"a path too long for a socket", filepath.Join(dir, strings.Repeat("x", 120)), "bind"},
		{"a socket of another type", other, "cannot tell"},
		{"a lock that cannot be made", filepath.Join(dir, strings.Repeat("x", 253)), "lock"},
	} {
		got, err := Listen("unix", c.path, 0o600, KeepGroup)
		if err == nil {
			got.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if n := f.Name(); n != "file" && n != "other" {
			t.Errorf("%s is left", n)
		}
	}
}

// TestListenUnixKinds: a socket is of the type that was asked for, and one that somebody
// answers is told from one that nobody does by a connection of that type.
func TestListenUnixKinds(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		path := socketPath(t)
		l, err := Listen(network, path, 0o600, KeepGroup)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial(network, path)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		c.Close()
		if l.Addr().Network() != network {
			t.Errorf("%s is said to be %s", network, l.Addr().Network())
		}
		if _, err := Listen(network, path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), "another daemon answers") {
			t.Errorf("%s, a second daemon: %v", network, err)
		}
	}
}

// TestNothingBeforeItIsReady: a socket is at its path only when it has its mode and its group and
// somebody listens: it is renamed to it and not changed there. Where no address has room for
// another name it is made in its place.
func TestNothingBeforeItIsReady(t *testing.T) {
	dir := filepath.Dir(socketPath(t))
	longest := strings.Repeat("x", mostPath-len(dir)-1)
	for name, want := range map[string]uint32{"sock": unix.IN_MOVED_TO, longest[1:]: unix.IN_MOVED_TO, longest: unix.IN_CREATE} {
		path := filepath.Join(dir, name)
		in, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(in)
		if _, err := unix.InotifyAddWatch(in, dir, unix.IN_CREATE|unix.IN_ATTRIB|unix.IN_MOVED_TO); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second finds what the first has left
			l, err := Listen("unix", path, 0o666, KeepGroup)
			if err != nil {
				t.Fatal(err)
			}
			var saw uint32
			b := make([]byte, 1<<16)
			n, err := unix.Read(in, b)
			if err != nil {
				t.Fatal(err)
			}
			for b = b[:n]; len(b) > 0; {
				end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
				if what, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:end]), "\x00"); what == name {
					saw |= binary.NativeEndian.Uint32(b[4:])
				}
				b = b[end:]
			}
			if want == unix.IN_MOVED_TO && saw != want || saw&want == 0 {
				t.Errorf("a path of %d bytes: seen at it %#x, want %#x", len(path), saw, want)
			}
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			l.(*unixListener).UnixListener.Close() // as one that is killed
			if left, _ := filepath.Glob(path + "?*"); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
		}
		os.Remove(path)
	}
}

// TestLeftHalfMade: what a daemon that was killed while it made its socket has left is in nobody's way.
func TestLeftHalfMade(t *testing.T) {
	path := socketPath(t)
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "~", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Listen("unix", path, 0o600, KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if err := os.WriteFile(path+"~", []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unix", path, 0o600, KeepGroup); err == nil || !strings.Contains(err.Error(), path+"~: there is a file of another kind") {
		t.Errorf("a file in the place where it is made: %v", err)
	}
}
