package node

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// listenNotify stands in for systemd.
func listenNotify(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

func TestSystemdNotification(t *testing.T) {
	cfg := testConfig(t)
	c := listenNotify(t, filepath.Join(filepath.Dir(cfg.API.Socket), "notify"))
	t.Setenv("WATCHDOG_USEC", "60000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n, _ := newFakeNode(t, cfg, &fakeCore{})
	stop := startNode(t, n)
	got := map[string]bool{}
	buf := make([]byte, 256)
	read := func(want ...string) {
		t.Helper()
		for range want {
			k, err := c.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got[string(buf[:k])] = true
		}
		for _, w := range want {
			if !got[w] {
				t.Errorf("no %s among %v", w, got)
			}
		}
	}
	read("READY=1", "WATCHDOG=1")
	stop()
	read("STOPPING=1")
}
