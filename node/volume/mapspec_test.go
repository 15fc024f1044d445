package volume

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rtrs"
)

func testConfig(t *testing.T) Config {
	c := Config{Name: "here", StateDir: t.TempDir()}
	c.defaults()
	return c
}

func TestMapSpecIsCompleted(t *testing.T) {
	c := testConfig(t)
	s := MapSpec{Node: "10.0.0.7", Name: "disk"}
	if err := c.complete(&s); err != nil {
		t.Fatal(err)
	}
	if s.Session != "here-10_0_0_7" || len(s.Paths) != 1 || s.Paths[0].Dst != "10.0.0.7:16388" || s.As != AsSocket || s.Access != AccessRW ||
		s.Policy != rtrs.MinInflight.String() || s.OnLoss != OnLossWait || s.IOTimeout != c.IOTimeout || s.LossTimeout != c.LossTimeout ||
		s.Unfenced != UnfencedAfter || s.UnfencedAfter != 40*time.Second || s.MaxReconnects != NoLimit {
		t.Fatalf("completed to %+v", s)
	}
	s = MapSpec{Node: "[fd00::7]:99", Name: "disk", Policy: "ml", As: AsNBD, Device: "/dev/nbd3"}
	if err := c.complete(&s); err != nil || s.Session != "here-fd00__7_99" || s.Paths[0].Dst != "[fd00::7]:99" || s.Policy != rtrs.MinLatency.String() {
		t.Fatalf("completed to %+v: %v", s, err)
	}
}

func TestWrongMapSpecsAreRefused(t *testing.T) {
	c := testConfig(t)
	for _, w := range []struct {
		says   string
		change func(*MapSpec)
	}{
		{"node", func(s *MapSpec) { s.Node = "" }},
		{"node", func(s *MapSpec) { s.Node = "a b" }},
		{"node", func(s *MapSpec) { s.Node = "host:0" }},
		{"node", func(s *MapSpec) { s.Node = "host:70000" }},
		{"node", func(s *MapSpec) { s.Node = "0.0.0.0" }},
		{"volume name", func(s *MapSpec) { s.Name = "" }},
		{"volume name", func(s *MapSpec) { s.Name = strings.Repeat("x", 255) }},
		{"volume name", func(s *MapSpec) { s.Name = "a\x00b" }},
		{"ID", func(s *MapSpec) { s.ID = "a/b" }},
		{"access", func(s *MapSpec) { s.Access = "w" }},
		{"as \"scsi\"", func(s *MapSpec) { s.As = "scsi" }},
		{"socket", func(s *MapSpec) { s.Socket = "here" }},
		{"at most 107", func(s *MapSpec) { s.Socket = "/" + strings.Repeat("x", 107) }},
		{"goes with a kernel device", func(s *MapSpec) { s.Device = "/dev/nbd0" }},
		{"goes with a socket", func(s *MapSpec) { s.As, s.Socket = AsNBD, "/s" }},
		{"/dev/nbdN", func(s *MapSpec) { s.As, s.Device = AsNBD, "/dev/sda" }},
		{"destination", func(s *MapSpec) { s.Paths = []PathSpec{{Dst: ""}} }},
		{"without a port", func(s *MapSpec) { s.Paths = []PathSpec{{Src: "10.0.0.1:5", Dst: "10.0.0.7"}} }},
		{"at most 32", func(s *MapSpec) { s.Paths = make([]PathSpec, 33) }},
		{"name of a session", func(s *MapSpec) { s.Session = "a/b" }},
		{"policy", func(s *MapSpec) { s.Policy = "best" }},
		{"queue depth", func(s *MapSpec) { s.QueueDepth = -1 }},
		{"I/O timeout", func(s *MapSpec) { s.IOTimeout = 1 }},
		{"loss timeout", func(s *MapSpec) { s.LossTimeout = -1 }},
		{"on-loss", func(s *MapSpec) { s.OnLoss = "cry" }},
		{"want after, now or wait", func(s *MapSpec) { s.Unfenced = "never" }},
		{"without a fence after", func(s *MapSpec) { s.UnfencedAfter = time.Second - 1 }},
		{"attempts to reconnect", func(s *MapSpec) { s.MaxReconnects = -2 }},
		{"attempts to reconnect", func(s *MapSpec) { s.MaxReconnects = 10000 }},
	} {
		s := MapSpec{Node: "n", Name: "d"}
		w.change(&s)
		if err := c.complete(&s); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), w.says) {
			t.Errorf("%+v: %v; want %q", s, err, w.says)
		}
	}
	c.StateDir = ""
	if err := c.complete(&MapSpec{Node: "n", Name: "d", Persist: true}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("persistent without a directory: %v", err)
	}
}

func TestPathsAreResolved(t *testing.T) {
	ctx := context.Background()
	for _, w := range []struct{ src, dst, local, remote string }{
		{"", "127.0.0.2", "127.0.0.1:0", "127.0.0.2:5"},
		{"127.0.0.3", "127.0.0.2:7", "127.0.0.3:0", "127.0.0.2:7"},
	} {
		local, remote, err := PathSpec{Src: w.src, Dst: w.dst}.resolve(ctx, 5)
		if err != nil || remote != netip.MustParseAddrPort(w.remote) || local.Addr() != netip.MustParseAddrPort(w.local).Addr() || local.Port() != 0 {
			t.Errorf("%v: %v, %v, %v", w, local, remote, err)
		}
	}
	if _, _, err := (PathSpec{Src: "::1", Dst: "127.0.0.2"}).resolve(ctx, 5); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("two families: %v", err)
	}
}
