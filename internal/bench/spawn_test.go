package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errSkip is why a program cannot be measured here.
type errSkip struct{ why string }

func (e errSkip) Error() string { return e.why }

func skip(format string, a ...any) error { return errSkip{fmt.Sprintf(format, a...)} }

// world is one measurement: the processes of a program and what they share.
type world struct {
	procs []*proc
	ends  []*proc // those that end by themselves
	files []*os.File
	dirs  []string
	bound time.Duration
}

// proc is one process.
type proc struct {
	name   string
	cmd    *exec.Cmd
	board  *board
	out    lockedBuffer
	exited chan struct{}
	err    error // after exited
}

// lockedBuffer keeps the beginning of what a process says.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() < 16<<10 {
		l.b.Write(p)
	}
	return len(p), nil
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.b.String())
}

// newWorld bounds everything in it: a measurement of so long a window, with
// its start and its end.
func newWorld(window time.Duration) *world { return &world{bound: 2*window + 30*time.Second} }

// starter runs commands from one thread that never ends: a child is killed
// when the thread that started it goes.
var starter = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

// role starts the test binary again in a role.
func (w *world) role(name string, a args, files ...*os.File) (*proc, error) {
	b, err := newBoard()
	if err != nil {
		return nil, err
	}
	if a.For == 0 {
		a.For = w.bound
	}
	j, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envRole+"="+name, envArgs+"="+string(j))
	cmd.ExtraFiles = append([]*os.File{b.f}, files...)
	return w.start(name, cmd, b)
}

// start runs a command that ends with its parent.
func (w *world) start(name string, cmd *exec.Cmd, b *board) (*proc, error) {
	p := &proc{name: name, cmd: cmd, board: b, exited: make(chan struct{})}
	if cmd.Stdout == nil { // else a terminal
		cmd.Stdout, cmd.Stderr = &p.out, &p.out
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.WaitDelay = time.Second
	started := make(chan error, 1)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		if b != nil {
			b.close()
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() { // ends with the process, which close kills
		p.err = cmd.Wait()
		close(p.exited)
	}()
	w.procs = append(w.procs, p)
	return p, nil
}

// dead tells of a process that ended by itself.
func (w *world) dead() error {
	for _, p := range w.procs {
		if slices.Contains(w.ends, p) {
			continue
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended: %v: %s", p.name, p.err, p.out.String())
		default:
		}
	}
	return nil
}

// close ends every process and gives everything back.
func (w *world) close() {
	for _, p := range w.procs {
		p.cmd.Process.Kill()
	}
	for _, p := range w.procs {
		<-p.exited
		if p.board != nil {
			p.board.close()
		}
	}
	for _, f := range w.files {
		f.Close()
	}
	for _, d := range w.dirs {
		os.RemoveAll(d)
	}
}

// tempDir is removed by close.
func (w *world) tempDir() (string, error) {
	d, err := os.MkdirTemp("", "rdsd-bench-")
	if err == nil {
		w.dirs = append(w.dirs, d)
	}
	return d, err
}

// own lets close close f.
func (w *world) own(f *os.File) *os.File {
	w.files = append(w.files, f)
	return f
}

// until waits for cond.
func (w *world) until(what string, cond func() bool) error {
	for begun := time.Now(); !cond(); time.Sleep(2 * time.Millisecond) {
		if err := w.dead(); err != nil {
			return err
		}
		if time.Since(begun) > 20*time.Second {
			var said []string
			for _, p := range w.procs {
				if s := p.out.String(); s != "" {
					said = append(said, p.name+": "+s)
				}
			}
			return fmt.Errorf("%s: nothing after 20 s; %s", what, strings.Join(said, "; "))
		}
	}
	return nil
}

// --- the window ---------------------------------------------------------------------

// sample is what one measurement of a program gave. Zero: not measured.
type sample struct {
	rate           float64       // datagrams or round trips a second
	p50, p99, p999 time.Duration // of round trips
	cpu            float64       // CPU seconds a million datagrams, all processes
	allocs         float64       // allocations a datagram, in the daemons
	busy           float64       // share of a core the daemon takes while idle, or who looks at it
	unwatched      *sample       // of the same processes while nobody looked at them
}

// window measures for d what receiver counts in word, after it has begun and
// run for a fifth of d.
func (w *world) window(receiver *proc, word int, d time.Duration) (sample, error) {
	return w.windowOf(receiver, word, d, nil)
}

// windowOf is window that calls mark at both ends.
func (w *world) windowOf(receiver *proc, word int, d time.Duration, mark func() error) (sample, error) {
	b := receiver.board
	if err := w.until(receiver.name+" receives", func() bool { return b.load(word) > 0 }); err != nil {
		return sample{}, err
	}
	time.Sleep(d / 5)
	if mark != nil {
		if err := mark(); err != nil {
			return sample{}, err
		}
	}
	h0, c0 := b.hist(), w.cpu()
	n0, begun := b.load(word), time.Now()
	time.Sleep(d)
	for b.load(word) == n0 && time.Since(begun) < d+5*time.Second {
		time.Sleep(10 * time.Millisecond) // a slow machine and a short window
	}
	n1, took := b.load(word), time.Since(begun)
	h1, c1 := b.hist(), w.cpu()
	if mark != nil {
		if err := mark(); err != nil {
			return sample{}, err
		}
	}
	if err := w.dead(); err != nil {
		return sample{}, err
	}
	n := float64(n1 - n0)
	if n == 0 {
		return sample{}, errors.New(receiver.name + " received nothing")
	}
	return sample{
		rate: n / took.Seconds(),
		p50:  quantile(h0, h1, 0.5), p99: quantile(h0, h1, 0.99), p999: quantile(h0, h1, 0.999),
		cpu: (c1 - c0).Seconds() / n * 1e6,
	}, nil
}

// cpu is the CPU time all processes of the world have used.
func (w *world) cpu() (sum time.Duration) {
	for _, p := range w.procs {
		sum += p.cpu()
	}
	return sum
}

// cpu is the CPU time the process has used.
func (p *proc) cpu() time.Duration {
	// The clock of another process, as clock_getcpuclockid(3) names it.
	const cpuclockSched = 2
	var t unix.Timespec
	if unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|cpuclockSched), &t) != nil {
		return 0 // it has ended; dead tells
	}
	return time.Duration(t.Nano())
}
