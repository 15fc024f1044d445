package walk

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

var (
	runFlag    = flag.Bool("walk", false, "build the daemon with counters, and list what a datagram passes")
	updateFlag = flag.Bool("walk.update", false, "and write docs/architecture.md anew")
)

const (
	module = "github.com/rdsd/rdsd/"
	few    = 2000
	more   = 3 * few
	size   = 64
)

// call is a function and how often it was called for each datagram.
type call struct {
	file, name string
	calls      float64
}

// TestWalk sends datagrams one at a time, each when the one before has been read, through
// daemons that count the calls of their functions. What is called for each of them is the
// difference of two runs of different length, so that starts and ends do not count; what is
// called for fewer than every second one (timers, maps) is left out.
func TestWalk(t *testing.T) {
	if !*runFlag && !*updateFlag {
		t.Skip("elsewhere: make walk builds the daemon with counters and lists what a datagram passes")
	}
	bin := filepath.Join(t.TempDir(), "rdsd")
	build := exec.Command("go", "build", "-cover", "-covermode=count", "-coverpkg="+module+"...", "-o", bin, module+"rdsd")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("RDSD_BIN", bin)
	short, long := run(t, few), run(t, more)
	var text strings.Builder
	for i, what := range []string{"sends", "receives"} {
		l := difference(short[i], long[i], more-few)
		locks, functions := 0.0, 0.0
		for _, c := range l {
			functions += c.calls
			if c.name == "(*Local).LockAt" {
				locks = c.calls
			}
		}
		t.Logf("the daemon that %s: %d functions, called %.0f times, %.1f times the lock of the address", what, len(l), functions, locks)
		fmt.Fprintf(&text, "\nThe daemon that %s it: %d functions, %.0f calls; the lock of its address is taken %.0f times.\n\n| file | functions |\n|---|---|\n", what, len(l), functions, locks)
		byFile := map[string][]string{}
		var files []string
		for _, c := range l {
			if byFile[c.file] == nil {
				files = append(files, c.file)
			}
			name := "`" + c.name + "`"
			if n := int(c.calls + 0.5); n > 1 {
				name += fmt.Sprintf(" ×%d", n)
			}
			byFile[c.file] = append(byFile[c.file], name)
		}
		slices.Sort(files)
		for _, f := range files {
			fmt.Fprintf(&text, "| `%s` | %s |\n", f, strings.Join(byFile[f], ", "))
		}
	}
	if *updateFlag {
		write(t, text.String())
	}
}

// run has n datagrams sent and returns, for each daemon, how often each function was called.
func run(t *testing.T, n int) (counts [2]map[call]uint64) {
	a, b := rdsdtest.Pair(t)
	var dirs [2]string
	for i, d := range []*rdsdtest.Daemon{a, b} {
		d.Stop()
		dirs[i] = t.TempDir()
		d.Env = []string{"GOCOVERDIR=" + dirs[i]}
		d.Run()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bind := func(d *rdsdtest.Daemon) *rdsd.Socket {
		s, err := d.Dial().Bind(ctx, netip.AddrPortFrom(d.Addr, 4000))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	from, to := bind(a), bind(b)
	payload := make([]byte, size)
	for range n {
		if err := from.Send(ctx, to.LocalAddr(), payload); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range []*rdsdtest.Daemon{a, b} {
		d.Stop()
		counts[i] = profile(t, dirs[i])
	}
	return counts
}

// profile reads how often the first block of each function was entered.
func profile(t *testing.T, dir string) map[call]uint64 {
	file := filepath.Join(t.TempDir(), "profile")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line := regexp.MustCompile(`^(.*\.go):(\d+)\.(\d+),\d+\.\d+ \d+ (\d+)$`)
	blocks := map[string]map[int]uint64{} // by file and position (line * 1000 + column)
	for s := bufio.NewScanner(f); s.Scan(); {
		m := line.FindStringSubmatch(s.Text())
		if m == nil || !strings.HasPrefix(m[1], module) {
			continue
		}
		name := strings.TrimPrefix(m[1], module)
		if blocks[name] == nil {
			blocks[name] = map[int]uint64{}
		}
		l, _ := strconv.Atoi(m[2])
		c, _ := strconv.Atoi(m[3])
		n, _ := strconv.ParseUint(m[4], 10, 64)
		blocks[name][l*1000+c] = max(blocks[name][l*1000+c], n)
	}
	counts := map[call]uint64{}
	for name, b := range blocks {
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, filepath.Join("..", "..", name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				p := set.Position(fn.Body.Lbrace)
				for at := p.Line*1000 + p.Column; at <= p.Line*1000+p.Column+1; at++ {
					if n := b[at]; n > 0 {
						counts[call{file: name, name: nameOf(fn)}] = n
					}
				}
			}
		}
	}
	return counts
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	switch r := fn.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		return fmt.Sprintf("(*%v).%s", r.X, fn.Name.Name)
	case *ast.Ident:
		return r.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}

func difference(short, long map[call]uint64, n int) (l []call) {
	for c, calls := range long {
		if c.calls = float64(calls-min(calls, short[c])) / float64(n); c.calls >= 0.5 {
			l = append(l, c)
		}
	}
	slices.SortFunc(l, func(a, b call) int { return strings.Compare(a.file+" "+a.name, b.file+" "+b.name) })
	return l
}

// write puts text between the marks of docs/architecture.md.
func write(t *testing.T, text string) {
	const name, begin, end = "../../docs/architecture.md", "<!-- walk: begin; written by make walk -->\n", "<!-- walk: end -->\n"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks %s or %s", name, begin, end)
	}
	if err := os.WriteFile(name, []byte(head+begin+text+"\n"+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestListedWalk: the list that stands in docs/architecture.md is within its bar.
func TestListedWalk(t *testing.T) {
	const functions, locks = 80, 2
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`The daemon that sends it: (\d+) functions, \d+ calls; the lock of its address is taken (\d+) times`).FindSubmatch(text)
	if m == nil {
		t.Fatal("docs/architecture.md lists no walk")
	}
	if n, _ := strconv.Atoi(string(m[1])); n > functions {
		t.Errorf("%d functions are passed at the sender, at most %d may be", n, functions)
	}
	if n, _ := strconv.Atoi(string(m[2])); n > locks {
		t.Errorf("the lock is taken %d times at the sender, at most %d may be", n, locks)
	}
}
