package rdsdtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var build struct {
	sync.Mutex
	dir  string            // guarded by mu; holds what was built
	done map[string]result // guarded by mu; by package
}

type result struct {
	path string
	err  error
}

// Binary returns the path of the rdsd program. A program that does not build
// fails the test.
func Binary(tb testing.TB) string {
	tb.Helper()
	if bin := os.Getenv("RDSD_BIN"); bin != "" {
		return bin
	}
	return Build(tb, "github.com/rdsd/rdsd/rdsd")
}

// Build compiles a main package of this module, once per test process, and
// returns the program's path. Remove must be called before the process ends.
func Build(tb testing.TB, pkg string) string {
	tb.Helper()
	build.Lock()
	defer build.Unlock()
	if r, ok := build.done[pkg]; ok {
		if r.err != nil {
			tb.Fatal(r.err)
		}
		return r.path
	}
	r := compile(pkg)
	if build.done == nil {
		build.done = make(map[string]result)
	}
	build.done[pkg] = r
	if r.err != nil {
		tb.Fatal(r.err)
	}
	return r.path
}

func compile(pkg string) result {
	if build.dir == "" {
		dir, err := os.MkdirTemp("", "rdsdtest")
		if err != nil {
			return result{err: err}
		}
		build.dir = dir
	}
	path := filepath.Join(build.dir, filepath.Base(pkg))
	out, err := exec.Command("go", "build", "-o", path, pkg).CombinedOutput()
	if err != nil {
		return result{err: fmt.Errorf("go build %s: %v\n%s", pkg, err, out)}
	}
	return result{path: path}
}

// Remove deletes what Build made: call it at the end of TestMain.
func Remove() {
	build.Lock()
	defer build.Unlock()
	if build.dir != "" {
		_ = os.RemoveAll(build.dir)
	}
	build.dir, build.done = "", nil
}
