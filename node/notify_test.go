package node

import (
	"context"
	"log/slog"
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

// TestWatchdogEachTime: who is watched says again and again that it is alive, after it was
// asked, until its end. What systemd said stays in the environment, so that the next is
// watched too; without it, or when it is about another process, nobody is asked.
func TestWatchdogEachTime(t *testing.T) {
	c := listenNotify(t, filepath.Join(t.TempDir(), "notify"))
	for i, x := range []struct {
		usec  string
		pid   int
		asked int
	}{
		{"2000", os.Getpid(), 3},
		{"", 0, 3}, // as it was left
		{"2000", os.Getpid() + 1, 0},
		{"0", os.Getpid(), 0},
		{"2000", os.Getpid(), 3},
	} {
		if x.usec != "" {
			t.Setenv("WATCHDOG_USEC", x.usec)
			t.Setenv("WATCHDOG_PID", strconv.Itoa(x.pid))
		}
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		watchdog(ctx, slog.New(slog.DiscardHandler), func() {
			if asked++; asked == x.asked {
				cancel()
			}
		})
		cancel()
		if asked < x.asked || asked > x.asked+1 { // the end and a tick may come together
			t.Errorf("%d: asked %d times, want %d", i, asked, x.asked)
		}
		buf := make([]byte, 256)
		for range asked {
			if n, err := c.Read(buf); err != nil || string(buf[:n]) != "WATCHDOG=1" {
				t.Errorf("%d: %q, %v", i, buf[:n], err)
			}
		}
	}
}
