package dial

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func TestTarget(t *testing.T) {
	t.Setenv("RDSD_SOCKET", "")
	if got := Target(""); got != DefaultSocket {
		t.Errorf("without anything: %s", got)
	}
	t.Setenv("RDSD_SOCKET", "/env")
	if got := Target(""); got != "/env" {
		t.Errorf("with RDSD_SOCKET: %s", got)
	}
	if got := Target("/flag"); got != "/flag" {
		t.Errorf("with a flag: %s", got)
	}
}

func TestSplit(t *testing.T) {
	for target, want := range map[string][2]string{
		"/run/s":          {"unix", "/run/s"},
		"./s":             {"unix", "./s"},
		"s":               {"unix", "s"},
		"unix:///run/s":   {"unix", "/run/s"},
		"unix:///a%20b":   {"unix", "/a b"},
		"unix:s":          {"unix", "s"},
		"unix-abstract:s": {"unix", "@s"},
		"10.0.0.1:16387":  {"tcp", "10.0.0.1:16387"},
		"[fd00::1]:1":     {"tcp", "[fd00::1]:1"},
		"dns:///host:123": {"", ""},
	} {
		if network, addr := split(target); network != want[0] || addr != want[1] {
			t.Errorf("split(%q) = %q, %q; want %q", target, network, addr, want)
		}
	}
}

// TestWhy: each way of not reaching a daemon has its own words.
func TestWhy(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct {
		target string
		reason Reason
		says   string
	}{
		{filepath.Join(dir, "nothing"), Unreachable, "there is no such socket; start one with: rdsd serve --socket " + dir},
		{dead, Unreachable, "nobody listens, so the daemon stopped"},
		{file, BadTarget, "is not a socket"},
		{"127.0.0.1:1", Unreachable, "cannot reach the daemon at 127.0.0.1:1"},
	} {
		_, err := Dial(context.Background(), c.target)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Reason != c.reason || !strings.Contains(e.Text, c.says) {
			t.Errorf("%s: %v, want reason %d and %q", c.target, err, c.reason, c.says)
		}
	}
}

func TestCause(t *testing.T) {
	err := Cause(&rdsd.OpError{Op: "send", Err: rdserr.ErrCongested})
	if !errors.Is(err, rdserr.ErrCongested) || strings.Contains(err.Error(), "send") {
		t.Errorf("%v", err)
	}
	if err := Cause(&rdsd.OpError{Err: rdserr.ErrTimeout, Undecided: true}); !strings.Contains(err.Error(), "may have been accepted") {
		t.Errorf("%v", err)
	}
	if err := Cause(os.ErrNotExist); err != os.ErrNotExist {
		t.Errorf("%v", err)
	}
}

// TestSocketFileRemoved: a daemon whose socket's file was removed is not taken for one that does not run, beside which another is started.
func TestSocketFileRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unixpacket", path+".rings")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Dial(context.Background(), path)
	if e, ok := errors.AsType[*Error](err); !ok || e.Reason != Unreachable || !strings.Contains(e.Error(), "was removed while its daemon runs") {
		t.Errorf("while it runs: %v", err)
	}
	l.Close()
	if _, err = Dial(context.Background(), path); err == nil || !strings.Contains(err.Error(), "there is no such socket") {
		t.Errorf("without a daemon: %v", err)
	}
}
