package guard

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func newGuard() (*Guard, *bytes.Buffer, *[]int) {
	var log bytes.Buffer
	var codes []int
	g := &Guard{Log: slog.New(slog.NewTextHandler(&log, nil)), Exit: func(code int) { codes = append(codes, code) }}
	return g, &log, &codes
}

func TestContained(t *testing.T) {
	g, log, codes := newGuard()
	if err := g.Do(Dial, func() {}); err != nil {
		t.Error(err)
	}
	err := g.Do(Dial, func() { panic("boom") })
	if e, ok := errors.AsType[*Error](err); !ok || e.What != Dial || e.Value != "boom" {
		t.Errorf("%v", err)
	}
	if g.Count(Dial) != 1 || g.Count(Link) != 0 || len(*codes) != 0 {
		t.Errorf("%d counted, exits %v", g.Count(Dial), *codes)
	}
	for _, want := range []string{"boom", "dial", "guard_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %s: %s", want, log)
		}
	}
}

// TestNilGuard: without one a panic is what it always was.
func TestNilGuard(t *testing.T) {
	defer func() {
		if v := recover(); v != "boom" {
			t.Errorf("%v", v)
		}
	}()
	var g *Guard
	g.Do(Dial, func() { panic("boom") })
}

// below is a step that calls work which contains its own panics.
//
//go:noinline
func below(g *Guard) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = g.Below(Volume, v)
		}
	}()
	panic("below a step")
}

//go:noinline
func step() { panic("in a step") }

// TestWithinAStep: the stack tells, and the process ends whatever the work was for.
func TestWithinAStep(t *testing.T) {
	g, log, codes := newGuard()
	g.Steps = []string{"github.com/rdsd/rdsd/internal/guard.step", "github.com/rdsd/rdsd/internal/guard.below"}
	g.Do(Link, step)
	if !slices.Equal(*codes, []int{ExitCode}) || !strings.Contains(log.String(), "guard.step") {
		t.Errorf("exits %v, log %s", *codes, log)
	}
	if err := below(g); err == nil || len(*codes) != 1 {
		t.Errorf("work below a step: %v, exits %v", err, *codes)
	}
	g.Do(Link, func() { panic("beside it") })
	if len(*codes) != 1 {
		t.Error("a panic beside a step ended the process")
	}
}

// TestLockStillHeld: who panicked with the lock of a step ends the process, and one
// who did not waits for those who have it for a moment.
func TestLockStillHeld(t *testing.T) {
	var mu sync.Mutex
	g, log, codes := newGuard()
	g.Locks = func() { mu.Lock(); defer mu.Unlock() }
	mu.Lock()
	time.AfterFunc(20*time.Millisecond, mu.Unlock)
	g.Do(Link, func() { panic("with a lock of somebody else's") })
	if len(*codes) != 0 {
		t.Error("a lock that is held for a moment ended the process")
	}
	g.Do(Link, func() { mu.Lock(); panic("with the lock") })
	if !slices.Equal(*codes, []int{ExitCode}) || !strings.Contains(log.String(), "lock of an engine") {
		t.Errorf("exits %v, log %s", *codes, log)
	}
	mu.Unlock()
}

// TestPoints: every name has a place in the sources, and every place a name.
func TestPoints(t *testing.T) {
	var found []string
	call := regexp.MustCompile(`guard\.Point\("([^"]+)"\)`)
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range call.FindAllSubmatch(b, -1) {
			found = append(found, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range Points {
		if !slices.Contains(found, n) {
			t.Errorf("no point %q in the sources", n)
		}
	}
	for _, n := range found {
		if !slices.Contains(Points, n) {
			t.Errorf("the point %q is in no list", n)
		}
	}
}
