package rdsdtest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 15 * time.Second
	pollEvery    = 10 * time.Millisecond
)

// Addresses of the two daemons of Pair.
var (
	AddrA = netip.MustParseAddr("127.0.0.2")
	AddrB = netip.MustParseAddr("127.0.0.3")
)

// Daemon is one running rdsd.
type Daemon struct {
	Addr   netip.Addr // its RDS address
	Port   int        // TCP port of the RDS links, the same for all that talk to each other
	Socket string     // path of its client socket

	// Env is added to the environment of the next Run.
	Env []string

	tb   testing.TB
	args []string

	mu   sync.Mutex
	cmd  *exec.Cmd     // guarded by mu; nil while stopped
	done chan struct{} // guarded by mu; closed when cmd has ended
	log  *logBuffer
}

// Pair starts two daemons that reach each other, for volumes too, at AddrA and
// AddrB.
func Pair(tb testing.TB, args ...string) (a, b *Daemon) {
	tb.Helper()
	port := FreePort(tb, AddrA, AddrB)
	args = append([]string{"--volume-port", strconv.Itoa(FreePort(tb, AddrA, AddrB))}, args...)
	return Start(tb, AddrA, port, args...), Start(tb, AddrB, port, args...)
}

// Start starts one daemon and waits until it serves. It is stopped when the
// test ends; its log is shown when the test has failed.
func Start(tb testing.TB, addr netip.Addr, port int, args ...string) *Daemon {
	tb.Helper()
	// Not tb.TempDir: its name may be longer than a socket address allows.
	dir, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		tb.Fatal(err)
	}
	d := &Daemon{
		Addr: addr, Port: port, Socket: filepath.Join(dir, "s"),
		tb: tb, log: &logBuffer{},
	}
	d.args = append([]string{"serve", "--address", addr.String(), "--port", strconv.Itoa(port),
		"--socket", d.Socket, "--http", ""}, args...)
	tb.Cleanup(func() {
		d.Kill()
		if tb.Failed() {
			tb.Logf("log of the daemon at %s:\n%s", addr, d.log)
		}
		_ = os.RemoveAll(dir)
	})
	d.Run()
	return d
}

// Run starts the process again after Stop or Kill, and waits until it serves.
func (d *Daemon) Run() {
	d.tb.Helper()
	cmd := exec.Command(Binary(d.tb), d.args...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	cmd.Env = append(os.Environ(), d.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		d.tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // ends with the process
		defer close(done)
		_ = cmd.Wait()
	}()
	d.mu.Lock()
	d.cmd, d.done = cmd, done
	d.mu.Unlock()
	if err := d.waitServing(done); err != nil {
		d.tb.Fatalf("rdsd %v: %v\n%s", d.args, err, d.log)
	}
}

func (d *Daemon) waitServing(done chan struct{}) error {
	c, err := rdsd.Dial(d.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		st, err := c.Admin().Status(ctx)
		if err == nil && st.State == "serving" {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("not serving after %v: %v", startTimeout, err)
		case <-time.After(pollEvery):
		}
	}
}

// Dial connects to the daemon; the client is closed with the test.
func (d *Daemon) Dial(opts ...rdsd.Option) *rdsd.Client {
	d.tb.Helper()
	c, err := rdsd.Dial(d.Socket, opts...)
	if err != nil {
		d.tb.Fatal(err)
	}
	d.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// AddrPort is an RDS port of this daemon.
func (d *Daemon) AddrPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(d.Addr, port) }

// Kill ends the process at once (SIGKILL).
func (d *Daemon) Kill() { d.end(syscall.SIGKILL) }

// Stop asks the process to end (SIGTERM) and returns its exit status.
func (d *Daemon) Stop() int { return d.end(syscall.SIGTERM) }

// Freeze makes a daemon that is there and says nothing, until Thaw. It returns
// when no thread of the process runs any more: kill(2) does not wait for that,
// and a thread on another processor goes on until it is interrupted.
func (d *Daemon) Freeze() {
	d.tb.Helper()
	pid := d.Pid()
	if pid == 0 {
		d.tb.Fatal("no daemon to freeze")
	}
	d.signal(syscall.SIGSTOP)
	for until := time.Now().Add(stopTimeout); !allStopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			d.tb.Fatalf("the daemon at %s still runs %v after SIGSTOP", d.Addr, stopTimeout)
		}
	}
}

// Thaw lets a frozen daemon go on.
func (d *Daemon) Thaw() { d.signal(syscall.SIGCONT) }

// allStopped says whether every thread of a process is stopped by a signal
// (proc_pid_stat(5): the state is the field after the name in brackets).
func allStopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		_, fields, ok := strings.Cut(string(stat), ") ")
		if err == nil && ok && fields[0] != 'T' {
			return false
		}
	}
	return len(stats) > 0
}

func (d *Daemon) signal(sig syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(sig)
	}
}

func (d *Daemon) end(sig syscall.Signal) int {
	d.mu.Lock()
	cmd, done := d.cmd, d.done
	d.cmd = nil
	d.mu.Unlock()
	if cmd == nil {
		return 0
	}
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
	case <-time.After(stopTimeout):
		d.tb.Errorf("the daemon at %s has not ended %v after signal %v", d.Addr, stopTimeout, sig)
		_ = cmd.Process.Kill()
		<-done
	}
	return cmd.ProcessState.ExitCode()
}

// Pid is the number of the running process, 0 when it was stopped or killed.
func (d *Daemon) Pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return 0
	}
	return d.cmd.Process.Pid
}

// Ended is closed when the process has ended, by whatever cause.
func (d *Daemon) Ended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// Log is what the daemon has written so far.
func (d *Daemon) Log() string { return d.log.String() }

// FreePort finds a TCP port that is free at all of the addresses.
func FreePort(tb testing.TB, addrs ...netip.Addr) int {
	tb.Helper()
	port, err := freeport.On(addrs...)
	if err != nil {
		tb.Fatal(err)
	}
	return int(port)
}

// logBuffer keeps the last part of a process's output.
type logBuffer struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

const maxLogBytes = 64 << 10

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if len(b.buf) > 2*maxLogBytes {
		b.buf = bytes.Clone(b.buf[len(b.buf)-maxLogBytes:])
	}
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.buf)
}
