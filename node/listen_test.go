package node

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func socketPath(t *testing.T) string { return testConfig(t).API.Socket }

func TestListenUnixModeAndGroup(t *testing.T) {
	path := filepath.Join(filepath.Dir(socketPath(t)), "new dir", "s")
	group := ""
	if os.Getuid() == 0 {
		group = "12345"
	}
	l, err := listenUnix("unix", path, 0o640, group)
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
	if gid := st.Sys().(*syscall.Stat_t).Gid; group != "" && gid != 12345 {
		t.Errorf("group %d, want 12345", gid)
	}
	if l.Addr().String() != path {
		t.Errorf("Addr %v, want %s", l.Addr(), path)
	}
}

func TestListenUnixRefusesLiveDaemon(t *testing.T) {
	path := socketPath(t)
	l, err := listenUnix("unix", path, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listenUnix("unix", path, 0o600, ""); err == nil || !strings.Contains(err.Error(), "another daemon answers") {
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
	l, err := listenUnix("unix", path, 0o600, "")
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
	if _, err := listenUnix("unix", path, 0o600, ""); err == nil || !strings.Contains(err.Error(), "another kind") {
		t.Errorf("regular file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("file is now %q", b)
	}
}

// A daemon that lost its socket file to a newer one must not remove that.
func TestCloseKeepsSuccessorsSocket(t *testing.T) {
	path := socketPath(t)
	old, err := listenUnix("unix", path, 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	successor, err := listenUnix("unix", path, 0o600, "")
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
	l, err := listenUnix("unix", "@rdsd-test-"+filepath.Base(filepath.Dir(socketPath(t))), 0o600, "")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestLimitListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLimitListener(inner, 1)
	defer l.Close()
	accepted := make(chan net.Conn, 2)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Fatal("two connections at once with a limit of 1")
	case <-time.After(20 * time.Millisecond):
	}
	first.Close()
	first.Close() // gives its place back once only
	second := <-accepted
	second.Close()
	l.Close()
	<-ended
}
