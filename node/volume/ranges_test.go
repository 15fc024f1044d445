package volume

import (
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// TestRangesOfTheConfiguration: both ends of each range are taken, and what is next to
// them is not.
func TestRangesOfTheConfiguration(t *testing.T) {
	for key, r := range map[string]struct {
		lo, hi int
		set    func(*Config, int)
	}{
		"queue_depth":      {1, 4095, func(c *Config, n int) { c.QueueDepth, c.MaxIO = n, 4096 }},
		"max_sessions":     {1, 65536, func(c *Config, n int) { c.MaxSessions = n }},
		"connections":      {1, 16, func(c *Config, n int) { c.Connections = n }},
		"heartbeat_missed": {2, 100, func(c *Config, n int) { c.MissedLimit = n }},
		"max_mappings":     {1, 65536, func(c *Config, n int) { c.MaxMappings = n }},
		"max_exports":      {1, 1 << 20, func(c *Config, n int) { c.MaxExports = n }},
	} {
		for n, ok := range map[int]bool{r.lo - 1: r.lo == 1, r.lo: true, r.hi: true, r.hi + 1: false, -1: false} { // 0: the default
			var c Config
			r.set(&c, n)
			if err := c.Validate(); (err == nil) != ok {
				t.Errorf("%s %d: %v", key, n, err)
			}
		}
	}
	const day = 24 * time.Hour
	for key, r := range map[string]struct {
		lo, hi time.Duration
		set    func(*Config, time.Duration)
	}{
		"heartbeat_interval": {10 * time.Millisecond, time.Minute, func(c *Config, d time.Duration) { c.Heartbeat = d }},
		"reconnect_min":      {time.Millisecond, 7 * time.Second, func(c *Config, d time.Duration) { c.ReconnectMin, c.ReconnectMax = d, 7*time.Second }},
		"reconnect_max":      {time.Millisecond, 10 * time.Minute, func(c *Config, d time.Duration) { c.ReconnectMin, c.ReconnectMax = min(d, time.Millisecond), d }},
		"io_timeout":         {100 * time.Millisecond, day, func(c *Config, d time.Duration) { c.IOTimeout = d }},
		"loss_timeout":       {time.Millisecond, day, func(c *Config, d time.Duration) { c.LossTimeout = d }},
		"nbd_timeout":        {time.Second, day, func(c *Config, d time.Duration) { c.NBDTimeout = d }},
		"nbd_dead_timeout":   {time.Second, day, func(c *Config, d time.Duration) { c.DeadTimeout = d }},
	} {
		for d, ok := range map[time.Duration]bool{r.lo - 1: false, r.lo: true, r.hi: true, r.hi + 1: false} {
			var c Config
			r.set(&c, d)
			if err := c.Validate(); (err == nil) != ok {
				t.Errorf("%s %v: %v", key, d, err)
			}
		}
	}
	for _, c := range []struct {
		depth, size int
		ok          bool
	}{
		{1, 4 << 10, true}, {1, 4<<10 - 4096, true}, {1, 2048, false}, {1, 4<<10 + 4096, true}, {1, 4<<10 + 512, false},
		{1, 32 << 20, true}, {1, 32<<20 + 4096, false},
		// Bits of the depth and of a chunk, a page larger than max_io_bytes, are 28 at most.
		{4095, 64<<10 - 4096, true}, {4095, 64 << 10, false}, {2048, 128<<10 - 4096, true}, {2049, 128<<10 - 4096, false},
		{8, 32<<20 - 4096, true}, {9, 32<<20 - 4096, false}, {8, 32 << 20, false},
	} {
		if err := (Config{QueueDepth: c.depth, MaxIO: c.size}).Validate(); (err == nil) != c.ok {
			t.Errorf("%d requests of %d bytes: %v", c.depth, c.size, err)
		}
	}
	for m, ok := range map[fs.FileMode]bool{0o777: true, 0o1000: false, fs.ModeDir | 0o600: false} {
		if err := (Config{SocketMode: m}).Validate(); (err == nil) != ok {
			t.Errorf("socket_mode %v: %v", m, err)
		}
	}
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, c := range []struct {
		l  []netip.Addr
		ok bool
	}{{[]netip.Addr{one, other}, true}, {[]netip.Addr{one, one}, false}, {[]netip.Addr{{}}, false}, {[]netip.Addr{netip.MustParseAddr("224.0.0.1")}, false}} {
		if err := (Config{Addresses: c.l}).Validate(); (err == nil) != c.ok {
			t.Errorf("addresses %v: %v", c.l, err)
		}
	}
}

// TestRangesOfNames: names, IDs and patterns as long as they may be, and one byte more.
func TestRangesOfNames(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for s, ok := range map[string]bool{"": false, "a": true, x(254): true, x(255): false, "a/b": false, "a.b": false, "a\x00": false, "\xff": false, "a b": true} {
		if err := CheckSessionName(s); (err == nil) != ok {
			t.Errorf("session %q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"": false, "*": true, x(254): true, x(255): false} {
		if err := checkGlobs([]string{"a", s}); (err == nil) != ok {
			t.Errorf("pattern %q: %v", s, err)
		}
	}
	for s, ok := range map[string]bool{"": true, x(64): true, x(65): false, "azAZ09-_": true, "`": false, "{": false, "@": false, "[": false, "/": false, ":": false, ".": false} {
		if err := checkID(s); (err == nil) != ok {
			t.Errorf("ID %q: %v", s, err)
		}
	}
	for in, want := range map[string]string{"a/b.c:d e": "a_b_c_d_e", "a\x00b\x1fc": "a_b_c", "a!b": "a!b", "\xff": "_", "é": "é"} {
		if got := sessionPart(in); got != want {
			t.Errorf("%q as a part of a name: %q, want %q", in, got, want)
		}
	}
}

// TestRangesOfMappings: what a mapping may be asked for, to the end of each range.
func TestRangesOfMappings(t *testing.T) {
	c := testConfig(t)
	paths := func(n int) (l []PathSpec) {
		for i := range n {
			l = append(l, PathSpec{Dst: fmt.Sprintf("10.0.1.%d", i)})
		}
		return l
	}
	const day = 24 * time.Hour
	for _, w := range []struct {
		what   string
		ok     bool
		change func(*MapSpec)
	}{
		{"a name of 254", true, func(s *MapSpec) { s.Name = strings.Repeat("x", 254) }},
		{"a name that is not UTF-8", false, func(s *MapSpec) { s.Name = "\xff" }},
		{"a NUL in front of a name", false, func(s *MapSpec) { s.Name = "\x00a" }},
		{"a socket of 107", true, func(s *MapSpec) { s.Socket = "/" + strings.Repeat("x", 106) }},
		{"a socket of 108", false, func(s *MapSpec) { s.Socket = "/" + strings.Repeat("x", 107) }},
		{"32 paths", true, func(s *MapSpec) { s.Paths = paths(32) }},
		{"33 paths", false, func(s *MapSpec) { s.Paths = paths(33) }},
		{"queue depth 65535", true, func(s *MapSpec) { s.QueueDepth = 65535 }},
		{"queue depth 65536", false, func(s *MapSpec) { s.QueueDepth = 65536 }},
		{"I/O timeout 100ms", true, func(s *MapSpec) { s.IOTimeout = 100 * time.Millisecond }},
		{"I/O timeout below 100ms", false, func(s *MapSpec) { s.IOTimeout = 100*time.Millisecond - 1 }},
		{"I/O timeout of a day", true, func(s *MapSpec) { s.IOTimeout = day }},
		{"I/O timeout above a day", false, func(s *MapSpec) { s.IOTimeout = day + 1 }},
		{"loss timeout 1ms", true, func(s *MapSpec) { s.LossTimeout = time.Millisecond }},
		{"loss timeout below 1ms", false, func(s *MapSpec) { s.LossTimeout = time.Millisecond - 1 }},
		{"loss timeout of a day", true, func(s *MapSpec) { s.LossTimeout = day }},
		{"loss timeout above a day", false, func(s *MapSpec) { s.LossTimeout = day + 1 }},
		{"any kernel device", true, func(s *MapSpec) { s.As = AsNBD }},
		{"a path and a wrong one", false, func(s *MapSpec) { s.Paths = append(paths(1), PathSpec{}) }},
		{"to persist", true, func(s *MapSpec) { s.Persist = true }},
		{"migration", true, func(s *MapSpec) { s.Access = AccessMigration }},
	} {
		s := MapSpec{Node: "n", Name: "d"}
		w.change(&s)
		if err := c.complete(&s); (err == nil) != w.ok {
			t.Errorf("%s: %v", w.what, err)
		}
	}
	// A session's name is cut where it is too long.
	s := MapSpec{Node: strings.Repeat("n", 250), Name: "d"}
	if err := c.complete(&s); err != nil || s.Session != "here-"+strings.Repeat("n", 249) {
		t.Errorf("the session of a long name is %q: %v", s.Session, err)
	}
}

// TestRangesOfExports likewise.
func TestRangesOfExports(t *testing.T) {
	for _, w := range []struct {
		what string
		s    ExportSpec
		ok   bool
	}{
		{"a name of 254", ExportSpec{Name: strings.Repeat("x", 254), Size: 512}, true},
		{"a name of 255", ExportSpec{Name: strings.Repeat("x", 255), Size: 512}, false},
		{"one block", ExportSpec{Name: "a", Size: 512}, true},
		{"a byte less", ExportSpec{Name: "a", Size: 511}, false},
		{"a byte more", ExportSpec{Name: "a", Size: 513}, false},
		{"512 of blocks of 4096", ExportSpec{Name: "a", Size: 512, LogicalBlock: 4096}, false},
		{"4096 of blocks of 4096", ExportSpec{Name: "a", Size: 4096, LogicalBlock: 4096}, true},
		{"4096 of blocks of 512", ExportSpec{Name: "a", Size: 4096, LogicalBlock: 512}, true},
		{"the largest", ExportSpec{Name: "a", Size: blk.MaxSize - blk.MaxSize%4096, LogicalBlock: 4096}, true},
		{"a block more", ExportSpec{Name: "a", Size: blk.MaxSize - blk.MaxSize%4096 + 4096, LogicalBlock: 4096}, false},
		{"memory by its kind", ExportSpec{Name: "a", Kind: KindMemory, Size: 512}, true},
		{"memory that is created", ExportSpec{Name: "a", Kind: KindMemory, Size: 512, Create: true}, false},
		{"a file", ExportSpec{Name: "a", Path: "/x"}, true},
		{"a file that persists", ExportSpec{Name: "a", Path: "/x", Persist: true}, true},
		{"a file to create", ExportSpec{Name: "a", Kind: KindFile, Path: "/x", Create: true, Size: 512}, true},
		{"a file without its path", ExportSpec{Name: "a", Kind: KindFile}, false},
		{"a device, read-only", ExportSpec{Name: "a", Kind: KindBlock, Path: "/x", ReadOnly: true}, true},
		{"for everybody", ExportSpec{Name: "a", Size: 512, Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, true},
		{"for nobody", ExportSpec{Name: "a", Size: 512, Allow: []netip.Prefix{{}}}, false},
	} {
		if err := w.s.check(); (err == nil) != w.ok {
			t.Errorf("%s: %v", w.what, err)
		}
	}
}

// TestNodesTakenApart: names and addresses of nodes, with a port and without.
func TestNodesTakenApart(t *testing.T) {
	long := strings.Repeat("n", 253)
	for in, want := range map[string]string{
		"host": "host 5", "host:7": "host 7", "10.0.0.1": "10.0.0.1 5", "10.0.0.1:65535": "10.0.0.1 65535", "::1": "::1 5", "[::1]": "::1 5",
		"[::1]:7": "::1 7", "::ffff:10.0.0.1": "10.0.0.1 5", "[::ffff:10.0.0.1]:7": "10.0.0.1 7", long: long + " 5", long + ":1": long + " 1",
		long + "n": "", long + "n:1": "", "": "", ":7": "", "host:": "", "host:0": "", "host:65536": "", "host:x": "", "a b": "", "a/b": "", "[host]": "",
		"0.0.0.0": "", "0.0.0.0:7": "", "::": "", "[::]:7": "", "224.0.0.1": "", "224.0.0.1:7": "", "[ff02::1]:7": "", "a\x00": "", "\xff": "",
	} {
		host, port, err := splitNode(in, 5)
		got := fmt.Sprint(host, " ", port)
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%.40q: %q, %v; want %q", in, got, err, want)
		}
	}
}
