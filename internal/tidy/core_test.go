package tidy

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// core lists the packages that hold protocol rules: events in, actions out.
// They are driven by a caller's lock, a caller's clock and a caller's seed, so
// that a simulated world repeats itself. The simulated transport obeys too.
var core = []string{"wire", "wire/rtrs", "wire/rnbd", "cong", "roce", "roce/cm", "conn", "rds", "rtrs", "rnbd", "transport/sim", "node/page/hour"}

// notInCore are imports the core does without. Prefixes end in a slash.
var notInCore = []string{
	"os", "os/", "net", "net/http", "net/rpc", "syscall", "golang.org/x/sys/", "io", "io/", "bufio",
	"sync", "context", "log", "log/", "runtime", "runtime/", "crypto/rand", "math/rand/v2", "testing",
	"google.golang.org/", "unsafe",
}

// coreExceptions allows a core file one forbidden import, with the reason.
var coreExceptions = map[string]string{
	"transport/sim/onesided.go io": "io.EOF only, with which a link ends that its peer has closed",
	"rtrs/errors.go syscall":       "error numbers only, which are what the peers tell each other",
	"transport/sim/net.go syscall": "error numbers only, so that a simulated link fails as a real one does",
}

// clock are the functions of package time that read or wait for a clock.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// seeded are the names of math/rand that do not use its global generator.
var seeded = []string{"New", "NewSource", "NewZipf", "Rand", "Source", "Source64", "Zipf"}

func TestCoreIsPure(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !s.built || !slices.Contains(core, s.dir) {
			continue // a file behind a build tag is no part of a daemon
		}
		seen[s.dir] = true
		names := map[string]string{} // local name of an import
		for _, imp := range s.ast.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			name := p[strings.LastIndexByte(p, '/')+1:]
			if imp.Name != nil {
				name = imp.Name.Name
			}
			names[name] = p
			for _, n := range notInCore {
				if (p == n || strings.HasSuffix(n, "/") && strings.HasPrefix(p, n)) && coreExceptions[s.path+" "+p] == "" {
					t.Errorf("%s imports %s: the core has no goroutine, clock, lock or I/O of its own", s.path, p)
				}
			}
		}
		at := func(n ast.Node) string { return s.fset.Position(n.Pos()).String() }
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a go statement in the core", at(n))
			case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%s: a channel in the core", at(n))
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || x.Obj != nil {
					return true
				}
				switch p := names[x.Name]; {
				case p == "time" && slices.Contains(clock, n.Sel.Name):
					t.Errorf("%s: time.%s: the core is told the time", at(n), n.Sel.Name)
				case p == "math/rand" && !slices.Contains(seeded, n.Sel.Name):
					t.Errorf("%s: rand.%s uses the global generator: the core is given a seeded one", at(n), n.Sel.Name)
				}
			}
			return true
		})
	}
	for _, p := range core {
		if !seen[p] {
			t.Errorf("found no file of package %s", p)
		}
	}
}
