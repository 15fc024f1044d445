package node

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/guard"
)

// TestNoDeferredUnlock: to let an engine's lock go is to carry out what the step has
// ordered. Deferred, that would be done with what a panic left half changed.
func TestNoDeferredUnlock(t *testing.T) {
	// These are mutexes: to let one go carries out nothing.
	mutexes := []string{"mu", "lmu", "wmu", "turn", "giving", "asking", "reloading", "sizing", "emu"}
	let := regexp.MustCompile(`defer (?:func\(\) \{[^\n}]*?)?([a-zA-Z.]+)\.(Unlock|Unlook|unlock|finish)\(`)
	var files []string
	for _, dir := range []string{".", "*", "*/*"} {
		l, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, l...)
	}
	seen := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range let.FindAllStringSubmatch(string(b), -1) {
			seen++
			if m[2] != "Unlock" || !slices.Contains(mutexes, m[1][strings.LastIndexByte(m[1], '.')+1:]) {
				t.Errorf("%s: %s", f, m[0])
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d deferred calls were found: it looks at the wrong files", seen)
	}
}

// TestStepsAreFunctions: each function that is named as a step is there; a name that was
// changed would let a panic in it pass for harmless.
func TestStepsAreFunctions(t *testing.T) {
	for _, s := range steps {
		if strings.HasSuffix(s, ".") {
			if _, err := os.Stat(filepath.Join("..", strings.TrimPrefix(strings.TrimSuffix(s, "."), "github.com/rdsd/rdsd/"))); err != nil {
				t.Errorf("%s: %v", s, err)
			}
			continue
		}
		pkg, name, _ := strings.Cut(strings.TrimPrefix(s, "github.com/rdsd/rdsd/node"), ".")
		recv, method, _ := strings.Cut(strings.TrimPrefix(name, "(*"), ").")
		found := false
		files, _ := filepath.Glob(filepath.Join(".", pkg, "*.go"))
		decl := regexp.MustCompile(`(?m)^func \([a-z]+ \*` + recv + `\) ` + method + `\(`)
		for _, f := range files {
			b, _ := os.ReadFile(f)
			found = found || decl.Match(b)
		}
		if !found {
			t.Errorf("there is no function %s", s)
		}
	}
}

// TestPanicWithTheLock: whoever panics between lock and unlock ends the process.
func TestPanicWithTheLock(t *testing.T) {
	n, err := New(testConfig(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var codes []int
	n.deps.Guard.Exit = func(code int) { codes = append(codes, code) }
	h := n.hosts.Locals()[0]
	if err := n.deps.Guard.Do(guard.Link, func() { panic("without the lock") }); err == nil || len(codes) != 0 {
		t.Errorf("%v, exits %v", err, codes)
	}
	n.deps.Guard.Do(guard.Link, func() {
		h.Lock()
		var l []int
		l[runtime.NumCPU()] = 1 // in the shell's own code, of which the stack says nothing
	})
	if len(codes) != 1 || codes[0] != guard.ExitCode {
		t.Errorf("exits %v", codes)
	}
	h.Unlock()
}
