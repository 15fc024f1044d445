package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// TestNobodyReadsNotifications: a socket of systemd's that is full, and that nobody reads, keeps no node from
// serving and from ending, and none of its words are lost while there is a reader again in time.
func TestNobodyReadsNotifications(t *testing.T) {
	cfg := testConfig(t)
	path := filepath.Join(filepath.Dir(cfg.API.Socket), "notify")
	c := listenNotify(t, path)
	fill, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	full := func() {
		t.Helper()
		for {
			fill.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			if _, err := fill.Write([]byte("x")); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				return
			}
		}
	}
	full()
	n, logs := newFakeNode(t, cfg, &fakeCore{})
	stop := startNode(t, n) // it serves
	buf := make([]byte, 256)
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	for said := ""; said != "READY=1"; {
		k, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		said = string(buf[:k])
	}
	full()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(logs.String(), "STOPPING=1") {
		t.Errorf("what could not be said is not in the log:\n%s", logs.String())
	}
}
