package processtest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rdsdtest.Remove()
	os.Exit(code)
}

// process is one run of the program.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  syncBuffer
	done chan struct{}
}

// dir makes a directory whose name is short enough for a socket's path.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// serveArgs are those of a daemon of its own at 127.0.0.1.
func serveArgs(t *testing.T, d string, more ...string) []string {
	t.Helper()
	at := netip.MustParseAddr("127.0.0.1")
	return append([]string{"serve", "--socket", filepath.Join(d, "s"), "--port", fmt.Sprint(rdsdtest.FreePort(t, at)),
		"--volume-port", fmt.Sprint(rdsdtest.FreePort(t, at)), "--http", ""}, more...)
}

// run starts the program; what it runs under, strace for example, comes first.
func run(t *testing.T, under []string, args ...string) *process {
	t.Helper()
	line := append(append([]string(nil), under...), rdsdtest.Binary(t))
	line = append(line, args...)
	p := &process{t: t, cmd: exec.Command(line[0], line[1:]...), done: make(chan struct{})}
	p.cmd.WaitDelay = 5 * time.Second // for whatever it has started and left
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.start()
	return p
}

// start starts p.cmd, which ends with the test.
func (p *process) start() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(p.done)
		p.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		if p.t.Failed() {
			p.t.Logf("%v:\n%s", p.cmd.Args, p.out.String())
		}
	})
}

// exit waits for the end and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.t.Fatalf("it has not ended\n%s", p.out.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// says waits until the output contains every one of want.
func (p *process) says(want ...string) {
	p.t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, missing := p.out.String(), ""
		for _, w := range want {
			if !strings.Contains(text, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		select {
		case <-p.done:
			if !strings.Contains(p.out.String(), missing) {
				p.t.Fatalf("it ended with %d without saying %q\n%s", p.cmd.ProcessState.ExitCode(), missing, p.out.String())
			}
		default:
		}
		if time.Now().After(until) {
			p.t.Fatalf("it does not say %q\n%s", missing, text)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
