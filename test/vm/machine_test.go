package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What scenarios do to the machine they run on, the guest. Everything is undone at the test's
// end, so that the next scenario finds the machine as this one did. Programs run in the
// initial network namespace, where the kernel's side is.

// commandLimit is for commands that have no limit of their own.
const commandLimit = 60 * time.Second

// longer is a limit on a busy machine (-vm.slow).
func longer(limit time.Duration) time.Duration { return limit * time.Duration(*slow) }

// run runs a program to its end and fails the test with what it wrote if it fails.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := try(t, argv...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// try is run whose caller takes the error.
func try(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), longer(commandLimit))
	defer cancel()
	full := kernelSide(argv)
	out, err := exec.CommandContext(ctx, full[0], full[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return string(out), err
}

// ip runs commands of ip, a line each, in the initial namespace.
func ip(t *testing.T, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) > 0 {
			run(t, append([]string{"ip"}, f...)...)
		}
	}
}

// undo runs a command at the test's end, which may fail.
func undo(t *testing.T, argv ...string) { t.Cleanup(func() { _, _ = try(t, argv...) }) }

// set writes one of the kernel's settings.
func set(t *testing.T, path, value string) {
	t.Helper()
	if err := write(path, value); err != nil {
		t.Fatal(err)
	}
}

// write is set whose caller takes the error. A setting takes its value in one write.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// read reads one of the kernel's settings.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// load loads a module, with what it needs, and at the test's end takes it out again.
func load(t *testing.T, module string, parameters ...string) {
	t.Helper()
	run(t, append([]string{"modprobe", module}, parameters...)...)
	t.Cleanup(func() { unload(t, module) })
}

// unload takes a module out. References of what has just ended go within a moment.
func unload(t *testing.T, module string) {
	t.Helper()
	until(t, "unload "+module, 20*time.Second, func() bool {
		_, err := try(t, "modprobe", "-r", module)
		return err == nil
	})
}

// process is a program that runs beside the test.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{} // closed after err is set
	err  error

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// said returns what the program has written.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// start starts a program; at the test's end it is killed, with all it has started.
func start(t *testing.T, argv ...string) *process {
	t.Helper()
	argv = kernelSide(argv)
	p := &process{t: t, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the program
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill does not wait for long: what waits for a disk that stands still cannot be killed.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.t.Errorf("%v does not end", p.cmd.Args)
	}
}

// wait waits for the program to end with status 0 and returns what it wrote.
func (p *process) wait(limit time.Duration) string {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(longer(limit)):
		p.t.Fatalf("%v: still running after %v\n%s", p.cmd.Args, limit, p.said())
	}
	if p.err != nil {
		p.t.Fatalf("%v: %v\n%s", p.cmd.Args, p.err, p.said())
	}
	return p.said()
}

// ends reports whether the program ends with status 0 within the limit.
func (p *process) ends(limit time.Duration) bool {
	p.t.Helper()
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Logf("%v: %v\n%s", p.cmd.Args, p.err, p.said())
		}
		return p.err == nil
	case <-time.After(longer(limit)):
		return false
	}
}

// until waits for cond.
func until(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	for begun := time.Now(); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > longer(limit) {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// memoryDisk makes a block device of the kernel of so many bytes, in memory.
func memoryDisk(t *testing.T, size int64) string {
	t.Helper()
	load(t, "brd", "rd_nr=1", fmt.Sprintf("rd_size=%d", size>>10))
	until(t, "/dev/ram0", 5*time.Second, func() bool { _, err := os.Stat("/dev/ram0"); return err == nil })
	return "/dev/ram0"
}
