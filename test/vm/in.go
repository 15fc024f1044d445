package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/ahead"
	"github.com/rdsd/rdsd/test/vm/agent"
)

// guestEnv is set in the test process that runs in the guest.
const guestEnv = "RDSD_VM_GUEST"

var (
	keep    = flag.String("vm.keep", "", "a directory that keeps each guest's logs and captures")
	capture = flag.Bool("vm.capture", false, "capture what each scenario sends, into -vm.keep")
	slow    = flag.Int("vm.slow", 1, "how many times longer than usual a scenario may take")
)

// InGuest reports whether this process runs in the guest.
func InGuest() bool { return os.Getenv(guestEnv) != "" }

// Main is what TestMain does in a package that uses In: it runs the tests and ends the guest.
func Main(m *testing.M) {
	if InGuest() {
		os.Exit(m.Run())
	}
	ahead.Run()
	flag.Parse()
	code := m.Run()
	shared.end()
	os.Exit(code)
}

// grace is how long the host waits beyond a scenario's limit.
const grace = 10 * time.Second

// shared is the guest in which scenarios run one after the other.
var shared guest

// byCount is the guest of what is measured by instructions (Options.Counted).
var byCount = guest{options: Options{Memory: "2G", Counted: true}}

type guest struct {
	options Options

	mu  sync.Mutex // held while a scenario runs
	vm  *VM        // guarded by mu; nil when there is none
	dir string     // guarded by mu; of the guest
}

// Fresh is given to In by scenarios that leave the guest in another state than they found it.
type Fresh bool

// In runs a scenario in the guest: a top-level test, or a subtest whose parents do nothing
// else. It fails when the scenario takes longer than the limit, or when the kernel finds
// fault with itself meanwhile. After a scenario that failed, or that is Fresh, the next has a
// guest of its own.
func In(t *testing.T, limit time.Duration, fresh Fresh, scenario func(t *testing.T)) {
	t.Helper()
	if InGuest() {
		scenario(t)
		return
	}
	needGuest(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if err := shared.run(t, limit*time.Duration(*slow)); err != nil {
		t.Error(err)
	}
	if t.Failed() || bool(fresh) {
		shared.endLocked()
	}
}

// InCounted is In with a guest of its own, whose clock is the instructions of its processor:
// for what is measured. The limit is by that clock, and by that of the host.
func InCounted(t *testing.T, limit time.Duration, scenario func(t *testing.T)) {
	t.Helper()
	if InGuest() {
		scenario(t)
		return
	}
	needGuest(t)
	byCount.mu.Lock()
	defer byCount.mu.Unlock()
	defer byCount.endLocked()
	if err := byCount.run(t, limit*time.Duration(*slow)); err != nil {
		t.Error(err)
	}
}

// needGuest skips the test where no guest can be run. CI must be able to.
func needGuest(t *testing.T) {
	t.Helper()
	err := Missing()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("no virtual machine can be run here: %v", err)
	case err != nil:
		t.Skipf("no virtual machine can be run here: %v", err)
	case testing.Short():
		t.Skip("a virtual machine takes a while; not with -short")
	}
}

// boot starts a guest if none runs. Its time is not the scenario's.
func (g *guest) boot(t *testing.T) (err error) {
	if g.vm != nil {
		return nil
	}
	if *keep != "" {
		if err = os.MkdirAll(*keep, 0o755); err != nil {
			return err
		}
	}
	if g.dir, err = os.MkdirTemp(*keep, "rdsd-vm-"); err != nil {
		return err
	}
	if g.dir, err = filepath.Abs(g.dir); err != nil {
		return err
	}
	begun := time.Now()
	o := g.options
	o.Dir = g.dir
	if g.vm, err = Boot(t.Context(), o); err != nil {
		return err
	}
	t.Logf("a guest in %.1f s", time.Since(begun).Seconds())
	return nil
}

// fault matches what a kernel says when it finds fault with itself.
var fault = regexp.MustCompile(`BUG:|WARNING:|Oops|general protection|blocked for more than|refcount_t:|UBSAN|KASAN|soft lockup|rcu.*stall`)

func (g *guest) run(t *testing.T, limit time.Duration) error {
	t.Helper()
	if err := g.boot(t); err != nil {
		return err
	}
	// The test binary in the guest comes first, and says where its goroutines are.
	ctx, cancel := context.WithTimeout(t.Context(), limit+grace)
	defer cancel()
	stopCapture, err := g.capture(ctx, t)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	mark := fmt.Sprintf("rdsd-vm: %s begins", t.Name())
	if _, err := g.vm.Run(ctx, nil, "sh", "-c", `echo "$0" > /dev/kmsg`, mark); err != nil {
		return err
	}
	argv := []string{self, "-test.v", "-test.count=1", "-test.timeout=" + limit.String(), "-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"}
	flag.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			argv = append(argv, "-"+f.Name+"="+f.Value.String())
		}
	})
	raw, err := g.vm.Run(ctx, []string{guestEnv + "=1", "TMPDIR=/var/tmp"}, argv...)
	stopCapture()
	said := inner(raw, t.Name())
	messages := g.vm.Messages(4000)
	if _, after, ok := strings.Cut(messages, mark); ok {
		messages = after
	}
	var exit *agent.ExitError
	switch {
	case err == nil && strings.Contains(said, "--- SKIP"):
		t.Skip(said)
	case err != nil && !errors.As(err, &exit):
		return fmt.Errorf("%w\nin the guest:\n%s\nits kernel:\n%s", err, said, lastLines([]byte(messages), 60))
	case err != nil || !strings.Contains(raw, "--- PASS: "+t.Name()+" "):
		return fmt.Errorf("in the guest:\n%s\nits kernel:\n%s", said, lastLines([]byte(messages), 60))
	case fault.MatchString(messages):
		return fmt.Errorf("the kernel found fault with itself:\n%s\nin the guest:\n%s", lastLines([]byte(messages), 100), said)
	}
	t.Log("in the guest:\n" + said)
	return nil
}

// capture starts a capture of all RoCE packets that pass a device, if it is asked for.
func (g *guest) capture(ctx context.Context, t *testing.T) (stop func(), err error) {
	if !*capture {
		return func() {}, nil
	}
	name := strings.ReplaceAll(t.Name(), "/", "-") + ".pcap"
	j, err := g.vm.Start(&bytes.Buffer{}, nil, "tcpdump", "-i", "any", "-U", "-Z", "root", "-w", "/run/out/"+name, "udp port 4791")
	if err != nil {
		return nil, err
	}
	return func() {
		// tcpdump writes every packet at once (-U), so it may be killed.
		_ = j.Kill()
		_ = j.Wait(ctx)
		t.Logf("captured: %s", filepath.Join(g.dir, "out", name))
	}, nil
}

// inner leaves of the output of go test -v what the scenario itself has said.
func inner(out, name string) string {
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "=== ") || line == "PASS" || line == "FAIL" ||
			strings.HasPrefix(line, "--- PASS: "+name+" ") || line == "testing: warning: no tests to run" {
			continue
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (g *guest) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endLocked()
}

// endLocked ends the guest. The caller holds mu.
func (g *guest) endLocked() {
	if g.vm != nil {
		g.vm.Kill()
	}
	if *keep == "" && g.dir != "" {
		_ = os.RemoveAll(g.dir)
	}
	g.vm, g.dir = nil, ""
}
