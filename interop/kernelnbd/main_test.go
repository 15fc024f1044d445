package kernelnbd

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/ahead"
	"github.com/rdsd/rdsd/interop"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

const (
	guestEnv    = "RDSD_NBD_GUEST"
	guestMemory = "768M"
	allLimit    = 400 * time.Second // for all tests together, with ordinary traffic
	aliveLimit  = 40 * time.Second  // without a word from the guest
)

// inGuest is set in the process that the guest's kernel started.
var inGuest = os.Getenv(guestEnv) != "" && os.Getpid() == 1

func TestMain(m *testing.M) {
	interop.HelperMain()
	trafficMain()
	serverMain()
	if inGuest {
		guestMain(m)
	}
	ahead.Run()
	flag.Parse()
	code := m.Run()
	if theRun != nil {
		if err := theRun.end(code != 0); err != nil {
			fmt.Fprintln(os.Stderr, "kernelnbd:", err)
			code = max(code, 1)
		}
	}
	rdsdtest.Remove()
	os.Exit(code)
}

// guest runs the test in the guest, and on the host waits for what it came to.
func guest(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if inGuest {
		f(t)
		return
	}
	err := interop.MissingKernel()
	switch {
	case raceEnabled:
		t.Skip("elsewhere: a program with the race detector does not start in the guest")
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("no kernel can be run here: %v", err)
	case err != nil:
		t.Skipf("no kernel can be run here: %v", err)
	case testing.Short():
		t.Skip("a kernel takes a minute; not with -short")
	}
	if theRun == nil {
		if theRun, err = boot(t); err != nil {
			t.Fatal(err)
		}
	}
	theRun.report(t)
}

// theRun is the kernel of this run, nil until a test asks for it. Tests do not
// run in parallel.
var theRun *guestRun

// guestRun is a kernel that runs the tests.
type guestRun struct {
	vm    *interop.InitVM
	dir   string
	ended chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	results map[string]*result // guarded by mu; by name of the test
	last    time.Time          // guarded by mu; of the last word
	over    bool               // guarded by mu; there will be no more
	rest    []string           // guarded by mu; lines outside of any test
}

type result struct {
	verdict string // PASS, FAIL or SKIP
	lines   []string
}

func boot(t *testing.T) (*guestRun, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rdsd-kernelnbd-")
	if err != nil {
		return nil, err
	}
	run := "."
	if f := flag.Lookup("test.run"); f.Value.String() != "" {
		run = f.Value.String()
	}
	g := &guestRun{dir: dir, ended: make(chan struct{}), results: map[string]*result{}, last: time.Now()}
	g.changed.L = &g.mu
	if g.vm, err = interop.BootInit(interop.InitOptions{
		Dir: dir, Memory: guestMemory,
		Argv: []string{self, "-test.v", "-test.run=" + run, "-test.timeout=" + time.Duration(max(*traffic, 1)*float64(allLimit)).String(),
			"-seed=" + fmt.Sprint(*seed), "-traffic=" + fmt.Sprint(*traffic), "-every=" + fmt.Sprint(*everyCall),
			"-rdsd=" + rdsdtest.Binary(t)},
		Env: []string{guestEnv + "=1"},
	}); err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	go g.read(g.vm.Line) // ends with the kernel
	return g, nil
}

var (
	runLine    = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +([^/\s]+)`)
	resultLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+)`)
	innerLine  = regexp.MustCompile(`^ +--- (PASS|FAIL|SKIP): `) // of a subtest; it comes after the result
)

// read takes the output of go test -v apart.
func (g *guestRun) read(line io.Reader) {
	defer close(g.ended)
	s := bufio.NewScanner(line)
	s.Buffer(nil, 1<<20)
	var current []string
	for s.Scan() {
		text := strings.TrimRight(s.Text(), "\r")
		g.mu.Lock()
		g.last = time.Now()
		if m := resultLine.FindStringSubmatch(text); m != nil {
			g.results[m[2]] = &result{m[1], current}
			current = nil
		} else if !runLine.MatchString(text) && !innerLine.MatchString(text) {
			current = append(current, text)
		}
		g.rest = current
		g.changed.Broadcast()
		g.mu.Unlock()
	}
	g.mu.Lock()
	g.over = true
	g.changed.Broadcast()
	g.mu.Unlock()
}

// report waits for the result of a test and makes it the host's.
func (g *guestRun) report(t *testing.T) {
	t.Helper()
	tick := time.AfterFunc(aliveLimit, g.changed.Broadcast)
	defer tick.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.results[t.Name()] == nil && !g.over {
		if left := aliveLimit - time.Since(g.last); left > 0 {
			tick.Reset(left + time.Millisecond)
		} else {
			t.Fatalf("the guest has said nothing for %v\n%s\nits console ends:\n%s", aliveLimit, strings.Join(g.rest, "\n"), g.vm.Console())
		}
		g.changed.Wait()
	}
	r := g.results[t.Name()]
	if r == nil {
		t.Fatalf("the guest ended before this test\n%s\nits console ends:\n%s", strings.Join(g.rest, "\n"), g.vm.Console())
	}
	switch said := strings.Join(r.lines, "\n"); r.verdict {
	case "PASS":
		if said != "" {
			t.Log("in the guest:\n" + said)
		}
	case "SKIP":
		t.Skip(strings.TrimSpace(said))
	default:
		t.Errorf("in the guest:\n%s\nits console ends:\n%s", said, g.vm.Console())
	}
}

func (g *guestRun) end(failed bool) error {
	err := g.vm.Kill()
	<-g.ended
	if failed {
		fmt.Fprintf(os.Stderr, "the guest's console: %s\n", g.dir)
		return err
	}
	if e := os.RemoveAll(g.dir); err == nil {
		err = e
	}
	return err
}
