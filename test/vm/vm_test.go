package vm

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/test/vm/agent"
)

var script = flag.String("vm.script", "", "a shell script for TestScript to run in a guest")

// soak adds what takes long. Nothing is skipped without it: fewer cases run.
var soak = flag.Bool("vm.soak", false, "run every case, and for longer")

// cases are those that run always and, with -vm.soak, the others.
func cases[T any](always []T, others ...T) []T {
	if *soak {
		return append(always, others...)
	}
	return always
}

func TestMain(m *testing.M) {
	nodeMain()
	pairsMain()
	Main(m)
}

// TestScript runs what -vm.script says: a way to look inside.
func TestScript(t *testing.T) {
	if *script == "" && !InGuest() {
		t.Skip("elsewhere: for use by hand, with -vm.script")
	}
	In(t, 10*time.Minute, Fresh(true), func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", *script).CombinedOutput()
		t.Logf("%s%v", out, err)
	})
}

// TestGuest is about the harness: what commands in a guest write, and how they end, reaches
// the host, and nothing of a guest is left when it is killed.
func TestGuest(t *testing.T) {
	needGuest(t)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if err := shared.boot(t); err != nil {
		t.Fatal(err)
	}
	vm := shared.vm
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	out, err := vm.Run(ctx, []string{"WORD=there"}, "sh", "-c", "echo $WORD; echo wrong >&2; exit 3")
	var exit *agent.ExitError
	if out != "there\nwrong\n" || !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("exit 3: %q, %v", out, err)
	}
	if out, err = vm.Run(ctx, nil, "head", "-c", "3000000", "/dev/zero"); err != nil || len(out) != 3000000 {
		t.Errorf("3,000,000 bytes of output: %d, %v", len(out), err)
	}
	if _, err = vm.Run(ctx, nil, "/no/such/program"); !errors.As(err, &exit) || exit.Why == "" {
		t.Errorf("no such program: %v", err)
	}
	if _, err = vm.Run(ctx, nil, "sh", "-c", "kill -9 $$"); !errors.As(err, &exit) || !strings.Contains(exit.Why, "killed") {
		t.Errorf("a command that was killed: %v", err)
	}

	// A limit ends the command and what it has started.
	short, cancelShort := context.WithTimeout(ctx, time.Second)
	defer cancelShort()
	if _, err = vm.Run(short, nil, "sh", "-c", "sleep 4711 & sleep 4711"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a limit: %v", err)
	}
	if out, err = vm.Run(ctx, nil, "sh", "-c", "sleep 0.2; pgrep -fx 'sleep 4711' | wc -l"); err != nil || strings.TrimSpace(out) != "0" {
		t.Errorf("after a limit there are %q processes, %v", out, err)
	}

	// The host's files are there, what is written over them is the guest's alone, and
	// /run/out is the host's.
	note := filepath.Join(t.TempDir(), "note")
	if err := os.WriteFile(note, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err = vm.Run(ctx, nil, "sh", "-c", "cat "+note+"; echo guest > "+note+"; cat "+note+"; echo out > /run/out/note"); err != nil || out != "hostguest\n" {
		t.Errorf("the host's file in the guest: %q, %v", out, err)
	}
	if b, err := os.ReadFile(note); err != nil || string(b) != "host" {
		t.Errorf("the host's file afterwards: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(shared.dir, "out", "note")); err != nil || string(b) != "out\n" {
		t.Errorf("a file in /run/out: %q, %v", b, err)
	}

	// A scenario that has waited for a guest that is gone is told.
	j, err := vm.Start(&bytes.Buffer{}, nil, "sleep", "4711")
	if err != nil {
		t.Fatal(err)
	}
	pid := vm.cmd.Process.Pid
	shared.endLocked()
	if err := j.Wait(ctx); !errors.Is(err, agent.ErrGone) {
		t.Errorf("a command of a guest that is gone: %v", err)
	}
	if p, err := os.FindProcess(pid); err == nil && p.Signal(syscall.Signal(0)) == nil {
		t.Errorf("QEMU still runs")
	}
}

// TestFaults: what makes In say that the kernel found fault with itself, and what does not.
func TestFaults(t *testing.T) {
	for line, is := range map[string]bool{
		"[   12.3] WARNING: CPU: 0 PID: 7 at drivers/infiniband/ulp/rtrs/rtrs-clt.c:100": true,
		"[   12.3] BUG: kernel NULL pointer dereference, address: 0000000000000008":      true,
		"[  130.3] INFO: task fio:77 blocked for more than 120 seconds.":                 true,
		"[   12.3] rtrs_core: loading out-of-tree module taints kernel.":                 false,
		"[   12.3] infiniband rxe_va: set active":                                        false,
	} {
		if fault.MatchString(line) != is {
			t.Errorf("%q: %v", line, !is)
		}
	}
}
