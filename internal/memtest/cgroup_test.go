package memtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// cgroups is where the kernel counts and limits memory: a directory below which those
// of the test are made. The two versions differ in the names of their files.
type cgroups struct {
	dir                 string
	limit, peak, events string
	swap                string // what limits memory and swap together, or swap; may be missing
	v2                  bool
}

// findCgroups finds the memory controller, or tells why a test cannot have one.
func findCgroups() (c cgroups, why string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return c, err.Error()
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		f := strings.Fields(line)
		sep := strings.Index(line, " - ")
		if sep < 0 || len(f) < 5 {
			continue
		}
		kind := strings.Fields(line[sep+3:])
		switch {
		case kind[0] == "cgroup" && strings.Contains(","+kind[len(kind)-1]+",", ",memory,"):
			c = cgroups{dir: f[4], limit: "memory.limit_in_bytes", swap: "memory.memsw.limit_in_bytes", peak: "memory.max_usage_in_bytes", events: "memory.oom_control"}
		case kind[0] == "cgroup2" && c.dir == "":
			if l, err := os.ReadFile(filepath.Join(f[4], "cgroup.controllers")); err == nil && strings.Contains(string(l), "memory") {
				_ = os.WriteFile(filepath.Join(f[4], "cgroup.subtree_control"), []byte("+memory"), 0o644) // it may be so already
				c = cgroups{dir: f[4], limit: "memory.max", swap: "memory.swap.max", peak: "memory.peak", events: "memory.events", v2: true}
			}
		}
	}
	if c.dir == "" {
		return c, "no cgroup file system with the memory controller is mounted"
	}
	c.dir = filepath.Join(c.dir, fmt.Sprintf("rdsd-memtest-%d", os.Getpid()))
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return c, err.Error()
	}
	if c.v2 {
		err = os.WriteFile(filepath.Join(c.dir, "cgroup.subtree_control"), []byte("+memory"), 0o644)
	} else if err = os.WriteFile(filepath.Join(c.dir, "memory.use_hierarchy"), []byte("1"), 0o644); err != nil {
		err = nil // it cannot be anything else then, in newer kernels
	}
	if err != nil {
		os.Remove(c.dir)
		return c, err.Error()
	}
	return c, ""
}

// limitDaemons has each daemon that the test starts from here on run in a cgroup of its
// own with that limit, from before its first page on. At the end of the test none may
// have been killed for want of memory.
func limitDaemons(t *testing.T, bytes int64) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes cgroups")
	}
	c, why := findCgroups()
	if why != "" {
		t.Skipf("this machine gives a test no cgroup: %s", why)
	}
	t.Cleanup(func() { c.check(t, bytes) })
	bin := rdsdtest.Binary(t)
	limit := strconv.FormatInt(bytes, 10)
	swap := limit
	if c.v2 {
		swap = "0"
	}
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = serve ] || exec %[1]s "$@"
d=%[2]s/$$
mkdir $d && echo %[3]s >$d/%[4]s || exit 99
[ ! -e $d/%[5]s ] || echo %[6]s >$d/%[5]s
echo $$ >$d/cgroup.procs || exit 99
exec %[1]s "$@"
`, bin, c.dir, limit, c.limit, c.swap, swap)
	name := filepath.Join(t.TempDir(), "rdsd")
	if err := os.WriteFile(name, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RDSD_BIN", name)
}

// check looks at what became of the daemons, which have ended, and cleans up.
func (c cgroups) check(t *testing.T, limit int64) {
	dirs, _ := filepath.Glob(filepath.Join(c.dir, "[0-9]*"))
	if len(dirs) == 0 {
		t.Error("no daemon was in a cgroup")
	}
	for _, d := range dirs {
		peak, err := os.ReadFile(filepath.Join(d, c.peak))
		n, _ := strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64)
		if err != nil || n == 0 && !c.v2 {
			t.Errorf("nothing was charged to %s: %v", d, err)
		}
		events, err := os.ReadFile(filepath.Join(d, c.events))
		if err != nil {
			t.Error(err)
		}
		for line := range strings.SplitSeq(string(events), "\n") {
			if kills, ok := strings.CutPrefix(line, "oom_kill "); ok && kills != "0" {
				t.Errorf("the kernel killed a daemon for want of memory: %s of %s", line, d)
			}
		}
		t.Logf("REPORT the cgroup took at most %.1f MiB of %d", float64(n)/(1<<20), limit>>20)
		remove(t, d)
	}
	remove(t, c.dir)
}

// remove removes a cgroup, which is busy for a moment after its last process.
func remove(t *testing.T, dir string) {
	var err error
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if err = unix.Rmdir(dir); err == nil {
			return
		}
	}
	t.Errorf("%s: %v", dir, err)
}
