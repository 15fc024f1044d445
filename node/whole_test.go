package node

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rtrs"
)

// TestWhenTheKeeperLooks: soon where a client lacks pages; often while the process changes by more
// than a step in either direction or is large; else seldom.
func TestWhenTheKeeperLooks(t *testing.T) {
	const limit = 1 << 30
	for _, x := range []struct {
		resident, last int64
		lacks          bool
		want           time.Duration
	}{
		{limit / 8, limit / 8, false, keepIdle},
		{limit / 8, limit / 8, true, min(client.FeedEvery, keepIdle)},
		{limit/8 + limitStep, limit / 8, false, keepIdle},
		{limit/8 + limitStep + 1, limit / 8, false, keepEvery},
		{limit/8 - limitStep, limit / 8, false, keepIdle},
		{limit/8 - limitStep - 1, limit / 8, false, keepEvery},
		{limit / 4, limit / 4, false, keepIdle},
		{limit/4 + 1, limit/4 + 1, false, keepEvery},
		{limit/4 + 1, limit/4 + 1, true, min(client.FeedEvery, keepEvery)},
	} {
		if got := nextLook(x.resident, x.last, limit, x.lacks); got != x.want {
			t.Errorf("%+v: looks after %v", x, got)
		}
	}
}

// TestGrants: chunks may grow by a ration, or by what is left of the limit, and are asked about
// when half of that is used.
func TestGrants(t *testing.T) {
	const limit = 1 << 30
	all := int64(limit) + memorySlack - memoryReserve
	for _, x := range []struct{ resident, chunks, step int64 }{
		{0, 0, ration(limit)},
		{0, 5, ration(limit)},
		{all - ration(limit), 7, ration(limit)},
		{all - ration(limit) + 1, 7, ration(limit) - 1},
		{all - 100, chunksLeast, 100},
		{all, chunksLeast, 0},
		{all + 100, chunksLeast + 1, 0},
		{all, 7, chunksLeast - 7}, // what no session can do without
		{all + 100, chunksLeast - 1, 1},
	} {
		if low, upTo := granted(limit, x.resident, x.chunks); low != x.chunks+x.step/2 || upTo != x.chunks+x.step {
			t.Errorf("%+v: from %d up to %d", x, low, upTo)
		}
	}
}

// TestPoliciesByName: each policy by each of its names, and no other.
func TestPoliciesByName(t *testing.T) {
	for s, want := range map[string]string{"mi": "min-inflight", "min-inflight": "min-inflight", "rr": "round-robin", "ml": "min-latency"} {
		if got, err := ParsePathPolicy(s); got != want || err != nil {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"nonsense", "min", "-1"} {
		if _, want := rtrs.ParsePolicy(s); want == nil {
			t.Fatalf("%q is a policy", s)
		}
		if got, err := ParsePathPolicy(s); err == nil || got != "" {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
}

// TestReloadReachesTheLog: the level and the bound of lines are what was reloaded.
func TestReloadReachesTheLog(t *testing.T) {
	cfg := testConfig(t)
	n, err := newNode(cfg, NewLogger(io.Discard, &cfg.Log))
	if err != nil {
		t.Fatal(err)
	}
	n.core = &fakeCore{}
	n.assemble()
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelError} {
		c := *cfg
		c.Log.Level.Level, c.Log.LinesPerS = level, float64(7+level)
		n.apply(&c)
		h, ok := n.deps.Log.Handler().(*limitHandler)
		if !ok {
			t.Fatalf("the log is a %T", n.deps.Log.Handler())
		}
		if n.level == nil || n.level.Level() != level || float64(h.shared.perSecond) != c.Log.LinesPerS {
			t.Errorf("%v lines of %v: want %v of %v", h.shared.perSecond, n.level, c.Log.LinesPerS, level)
		}
	}
}

// TestSocketDir: it is made so that those may pass who may use its sockets, and left as it is
// where it is there.
func TestSocketDir(t *testing.T) {
	if err := makeSocketDir("", 0o666); err != nil {
		t.Errorf("without one: %v", err)
	}
	for mode, want := range map[fs.FileMode]fs.FileMode{0o600: 0o700, 0o660: 0o711, 0o606: 0o711, 0o666: 0o711} {
		dir := filepath.Join(t.TempDir(), "a", "b")
		for range 2 {
			if err := makeSocketDir(dir, mode); err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(dir)
			if err != nil || st.Mode().Perm() != want {
				t.Errorf("sockets of mode %o: a directory of %v, %v", mode, st.Mode(), err)
			}
			want = 0o750
			if err := os.Chmod(dir, want); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestNoPage: without an address there is no page.
func TestNoPage(t *testing.T) {
	cfg := testConfig(t)
	cfg.HTTP.Listen = ""
	n, _ := newFakeNode(t, cfg, &fakeCore{})
	startNode(t, n)
	if a := n.HTTPAddr(); a != nil {
		t.Errorf("the page is at %v", a)
	}
}

// TestFailedStartLeavesThePage: whatever fails behind the page, its address is free again.
func TestFailedStartLeavesThePage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("port taken")
	for what, x := range map[string]struct {
		core *fakeCore
		spec func(*config.Config)
		says string
	}{
		"core":    {&fakeCore{startErr: boom}, func(*config.Config) {}, boom.Error()},
		"volumes": {nil, func(c *config.Config) { c.Volumes.StateDir = filepath.Join(file, "below") }, "volumes.state_dir"},
	} {
		cfg := testConfig(t)
		x.spec(cfg)
		n, err := New(cfg, nil)
		if x.core != nil {
			n, _ = newFakeNode(t, cfg, x.core)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Run(testContext(t)); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", what, err)
		}
		if a := n.HTTPAddr(); a != nil {
			l, err := net.Listen("tcp", a.String())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			l.Close()
		}
		nothingLeft(t, cfg)
	}
}

// TestLinesSayWhatIsMissing: a line says how many like it were left out, when there were some.
func TestLinesSayWhatIsMissing(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1, 0)
	log := limitLog(slog.New(slog.NewTextHandler(&out, nil)), 1, new(atomic.Uint64))
	log.Handler().(*limitHandler).shared.now = func() time.Time { return now }
	for range 3 {
		log.Info("again")
	}
	now = now.Add(time.Hour)
	log.Info("again")
	log.Info("other")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || strings.Contains(lines[0], "suppressed") || !strings.Contains(lines[1], "suppressed=2") || strings.Contains(lines[2], "suppressed") {
		t.Errorf("%q", lines)
	}
}
