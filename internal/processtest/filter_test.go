package processtest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestUnitAllowsTheCalls: what a daemon asks of the kernel while it starts, serves rings and gRPC, and
// stops, the unit file lets it ask; also with a group for its sockets.
func TestUnitAllowsTheCalls(t *testing.T) {
	strace := mayTrace(t)
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze, which knows the sets of calls")
	}
	allowed := allowedCalls(t)
	if !allowed["read"] || !allowed["mincore"] || allowed["chown"] || allowed["ptrace"] {
		t.Fatal("the unit's filter is not understood")
	}
	d := dir(t)
	out := filepath.Join(d, "trace")
	p := run(t, []string{strace, "-D", "-f", "-qqq", "-e", "signal=none", "-o", out}, serveArgs(t, d, "--socket-group", fmt.Sprint(os.Getegid()))...)
	p.says("msg=serving")
	for range 3 {
		if err := errors.Join(useOnce(filepath.Join(d, "s"))...); err != nil {
			t.Fatal(err)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Fatalf("it ended with %d", code)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\d+ +([a-z0-9_]+)\(`).FindAllSubmatch(b, -1) {
		seen[string(m[1])]++
	}
	if seen["memfd_create"] == 0 || seen["fchownat"] == 0 || seen["mincore"] == 0 || seen["epoll_ctl"] == 0 {
		t.Fatalf("the trace shows too little: %v", seen)
	}
	for call, n := range seen {
		if !allowed[call] {
			t.Errorf("packaging/rdsd.service does not allow %s, which was called %d times", call, n)
		}
	}
}

// allowedCalls are those of the unit's SystemCallFilter lines.
func allowedCalls(t *testing.T) map[string]bool {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "packaging", "rdsd.service"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	allowed := map[string]bool{"execve": true, "exit_group": true} // systemd itself executes the program
	for lines := bufio.NewScanner(f); lines.Scan(); {
		list, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "SystemCallFilter=")
		if !ok {
			continue
		}
		list, deny := strings.CutPrefix(list, "~")
		for _, name := range strings.Fields(list) {
			for _, call := range callsOf(t, name) {
				if deny {
					delete(allowed, call)
				} else {
					allowed[call] = true
				}
			}
		}
	}
	return allowed
}

// callsOf resolves a set of calls.
func callsOf(t *testing.T, name string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(name, "@") {
		return []string{name}
	}
	b, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", name).Output()
	if err != nil {
		t.Fatalf("systemd-analyze syscall-filter %s: %v", name, err)
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || line == name || strings.HasPrefix(line, "#") {
			continue
		}
		calls = append(calls, callsOf(t, line)...)
	}
	return calls
}
