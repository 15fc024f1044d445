package kernelnbd

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Traffic on a mounted file system: a few files at a time, each beside a model
// in memory, to which the same is done; every read is compared. Writes, reads,
// truncations, holes, mapped memory, direct I/O, syncs, reopened files, emptied
// caches. It runs in a process of its own: the one that serves the disk may not
// fault on a page of it, its own collector would wait for itself.

var (
	seed    = flag.Int64("seed", 0, "of the traffic; 0: any")
	traffic = flag.Float64("traffic", 1, "times as much traffic")
)

const trafficEnv = "RDSD_NBD_TRAFFIC"

// trafficJob is what such a process is told.
type trafficJob struct {
	Dir   string
	Seed  int64
	Files int
	Ops   int // on each file; 0: until its standard input ends
	Max   int // bytes of a file
}

// trafficReport is what it says in the end.
type trafficReport struct {
	Ops     map[string]int
	Files   map[string]string // path → hash of the content
	Longest time.Duration     // one operation took
	Seconds float64
}

// trafficProc is a running one.
type trafficProc struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.Closer
	out    bytes.Buffer
	err    bytes.Buffer
	job    trafficJob
	exited chan struct{}
	status error // after exited
}

// startTraffic starts so many operations on each file; 0: until stop.
func startTraffic(t *testing.T, dir string, files, ops int) *trafficProc {
	t.Helper()
	p := &trafficProc{t: t, exited: make(chan struct{}), job: trafficJob{Dir: dir, Files: files, Max: 1 << 20,
		Ops: int(float64(ops) * *traffic), Seed: *seed}}
	if p.job.Seed == 0 {
		p.job.Seed = time.Now().UnixNano()
	}
	j, err := json.Marshal(p.job)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = append(os.Environ(), trafficEnv+"="+string(j))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		p.status = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
	})
	return p
}

// stop lets it come to its end.
func (p *trafficProc) stop() { p.stdin.Close() }

// overWithin tells whether it ends within d.
func (p *trafficProc) overWithin(d time.Duration) bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(d):
		return false
	}
}

// wait returns the report; any mismatch or error of the traffic fails the test.
func (p *trafficProc) wait() (r trafficReport) {
	p.t.Helper()
	<-p.exited
	if p.status != nil {
		p.t.Fatalf("traffic (-seed %d): %v\n%s", p.job.Seed, p.status, p.err.String())
	}
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		p.t.Fatalf("traffic: %v: %s", err, p.out.String())
	}
	sum := 0
	for _, n := range r.Ops {
		sum += n
	}
	p.t.Logf("traffic: %d operations on %d files in %.1f s, the longest took %v", sum, p.job.Files, r.Seconds, r.Longest.Round(time.Millisecond))
	return r
}

// verify reads all files again: after a mount, from the disk.
func (r *trafficReport) verify(t *testing.T, dir string) {
	t.Helper()
	for name, want := range r.Files {
		if got, err := hashFile(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s: its content hashes to %s, want %s; %v", name, got, want, err)
		}
	}
}

func hashFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%d bytes %s", len(b), hex.EncodeToString(sum[:8])), err
}

// runTraffic is the process.
func runTraffic(j trafficJob) (trafficReport, error) {
	r := trafficReport{Ops: map[string]int{}, Files: map[string]string{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	var stop atomic.Bool
	go func() { // ends with the input, or the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(j.Ops == 0)
	}()
	begun := time.Now()
	for i := range j.Files {
		wg.Go(func() {
			c := &churn{rand: rand.New(rand.NewSource(j.Seed + int64(i))), max: j.Max, name: fmt.Sprintf("file%d", i), counts: map[string]int{}, stop: &stop}
			err := c.run(j.Dir, j.Ops)
			mu.Lock()
			defer mu.Unlock()
			for k, n := range c.counts {
				r.Ops[k] += n
			}
			r.Longest = max(r.Longest, c.longest)
			sum := sha256.Sum256(c.model)
			r.Files[c.name] = fmt.Sprintf("%d bytes %s", len(c.model), hex.EncodeToString(sum[:8]))
			if err != nil && failed == nil {
				failed = fmt.Errorf("%s: %w\nlast operations:\n%s", c.name, err, strings.Join(c.story, "\n"))
			}
		})
	}
	wg.Wait()
	r.Seconds = time.Since(begun).Seconds()
	return r, failed
}

// churn is the traffic on one file.
type churn struct {
	rand    *rand.Rand
	max     int
	name    string
	path    string
	f       *os.File
	direct  *os.File // the same file, O_DIRECT
	model   []byte
	n       int
	stop    *atomic.Bool
	counts  map[string]int
	story   []string // the last operations
	longest time.Duration
}

// churnOps are drawn by weight.
var churnOps = []struct {
	name   string
	weight int
	do     func(*churn) error
}{
	{"write", 30, (*churn).write},
	{"read", 25, (*churn).read},
	{"direct write", 8, (*churn).directWrite},
	{"direct read", 8, (*churn).directRead},
	{"map write", 4, (*churn).mapWrite},
	{"map read", 4, (*churn).mapRead},
	{"truncate", 6, (*churn).truncate},
	{"punch hole", 4, (*churn).punch},
	{"zero range", 3, (*churn).zero},
	{"collapse range", 1, (*churn).collapse},
	{"insert range", 1, (*churn).insert},
	{"fsync", 4, func(c *churn) error { return c.f.Sync() }},
	{"fdatasync", 3, func(c *churn) error { return unix.Fdatasync(int(c.f.Fd())) }},
	{"reopen", 2, (*churn).reopen},
	{"rename", 1, (*churn).rename},
	{"drop caches", 1, (*churn).drop},
}

func (c *churn) run(dir string, ops int) error {
	c.path = filepath.Join(dir, c.name)
	if err := c.open(os.O_CREATE | os.O_EXCL); err != nil {
		return err
	}
	sum := 0
	for _, o := range churnOps {
		sum += o.weight
	}
	for c.n = 0; (ops == 0 || c.n < ops) && !c.stop.Load(); c.n++ {
		at := c.rand.Intn(sum)
		for _, o := range churnOps {
			if at -= o.weight; at >= 0 {
				continue
			}
			c.tell("%s", o.name)
			begun := time.Now()
			if err := o.do(c); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			c.longest = max(c.longest, time.Since(begun))
			c.counts[o.name]++
			break
		}
	}
	if err := c.f.Sync(); err != nil {
		return err
	}
	if err := c.compare(c.f, 0, len(c.model)); err != nil {
		return err
	}
	return c.shut()
}

// tell keeps the last operations for when one fails.
func (c *churn) tell(format string, args ...any) {
	if len(c.story) == 40 {
		c.story = slices.Delete(c.story, 0, 1)
	}
	c.story = append(c.story, fmt.Sprintf("%d: ", c.n)+fmt.Sprintf(format, args...))
}

// span draws a range; its end is at most limit. unit: a multiple of it.
func (c *churn) span(limit, unit int) (off, n int) {
	units := limit / unit
	if units == 0 {
		return 0, 0
	}
	most := min(units, (128<<10)/unit)
	if c.rand.Intn(4) > 0 { // small ones more often
		most = min(units, (12<<10)/unit)
	}
	n = 1 + c.rand.Intn(most)
	off = c.rand.Intn(units - n + 1)
	c.tell("  %d bytes at %d of %d", n*unit, off*unit, len(c.model))
	return off * unit, n * unit
}

func (c *churn) open(flags int) (err error) {
	if c.f, err = os.OpenFile(c.path, os.O_RDWR|flags, 0o600); err != nil {
		return err
	}
	c.direct, err = os.OpenFile(c.path, os.O_RDWR|unix.O_DIRECT, 0)
	return err
}

func (c *churn) shut() error {
	if err := c.direct.Close(); err != nil {
		return err
	}
	return c.f.Close()
}

// grow makes the model at least n bytes long.
func (c *churn) grow(n int) {
	if n > len(c.model) {
		c.model = append(c.model, make([]byte, n-len(c.model))...)
	}
}

// put writes new content through w, and into the model.
func (c *churn) put(w *os.File, off int, b []byte) error {
	c.rand.Read(b)
	if n, err := w.WriteAt(b, int64(off)); err != nil || n != len(b) {
		return fmt.Errorf("%d of %d bytes: %w", n, len(b), err)
	}
	c.grow(off + len(b))
	copy(c.model[off:], b)
	return nil
}

func (c *churn) write() error {
	off, n := c.span(c.max, 1)
	return c.put(c.f, off, make([]byte, n))
}

func (c *churn) read() error {
	off, n := c.span(len(c.model), 1)
	return c.compare(c.f, off, n)
}

func (c *churn) compare(f *os.File, off, n int) error {
	b := aligned(n)
	if got, err := f.ReadAt(b, int64(off)); n > 0 && (err != nil || got != n) {
		return fmt.Errorf("%d of %d bytes at %d: %w", got, n, off, err)
	}
	return c.same(b, off)
}

// same compares what was read at off with the model.
func (c *churn) same(b []byte, off int) error {
	want := c.model[off : off+len(b)]
	if bytes.Equal(b, want) {
		return nil
	}
	first, wrong := -1, 0
	for i := range b {
		if b[i] != want[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	shown := min(len(b), first+16)
	return fmt.Errorf("WRONG BYTES: %d from offset %d on: %x, want %x", wrong, off+first, b[first:shown], want[first:shown])
}

const directUnit = 4096

func (c *churn) directWrite() error {
	off, n := c.span(c.max, directUnit)
	return c.put(c.direct, off, aligned(n))
}

func (c *churn) directRead() error {
	off, n := c.span(len(c.model), directUnit)
	return c.compare(c.direct, off, n)
}

// aligned is memory that direct I/O takes.
func aligned(n int) []byte {
	b := make([]byte, n+directUnit)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (directUnit - 1)
	return b[skip : skip+n : skip+n]
}

func (c *churn) mapped(prot int, use func(m []byte, off int) error) error {
	off, n := c.span(len(c.model), 1)
	if n == 0 {
		return nil
	}
	page := off &^ (os.Getpagesize() - 1)
	m, err := unix.Mmap(int(c.f.Fd()), int64(page), off+n-page, prot, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	err = use(m[off-page:], off)
	if err == nil && prot&unix.PROT_WRITE != 0 && c.rand.Intn(2) == 0 {
		err = unix.Msync(m, unix.MS_SYNC)
	}
	if e := unix.Munmap(m); err == nil {
		err = e
	}
	return err
}

func (c *churn) mapRead() error {
	return c.mapped(unix.PROT_READ, c.same)
}

func (c *churn) mapWrite() error {
	return c.mapped(unix.PROT_READ|unix.PROT_WRITE, func(m []byte, off int) error {
		c.rand.Read(m)
		copy(c.model[off:], m)
		return nil
	})
}

func (c *churn) truncate() error {
	n := c.rand.Intn(c.max + 1)
	c.tell("  from %d to %d", len(c.model), n)
	c.grow(n)
	c.model = c.model[:n:n]
	return c.f.Truncate(int64(n))
}

func (c *churn) punch() error {
	off, n := c.span(len(c.model), 1)
	if n == 0 {
		return nil
	}
	clear(c.model[off : off+n])
	return unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
}

func (c *churn) zero() error {
	off, n := c.span(c.max, 1)
	c.grow(off + n)
	clear(c.model[off : off+n])
	return unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_ZERO_RANGE, int64(off), int64(n))
}

// collapse takes blocks out of the middle; the kernel wants an end of the file behind them.
func (c *churn) collapse() error {
	off, n := c.span(len(c.model), directUnit)
	if n == 0 || off+n >= len(c.model) {
		return nil
	}
	c.model = slices.Delete(c.model, off, off+n)
	return unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, int64(off), int64(n))
}

func (c *churn) insert() error {
	off, n := c.span(len(c.model), directUnit)
	if n == 0 || len(c.model)+n > c.max {
		return nil
	}
	c.model = slices.Insert(c.model, off, make([]byte, n)...)
	return unix.Fallocate(int(c.f.Fd()), unix.FALLOC_FL_INSERT_RANGE, int64(off), int64(n))
}

func (c *churn) reopen() error {
	if err := c.shut(); err != nil {
		return err
	}
	return c.open(0)
}

func (c *churn) rename() error {
	to := fmt.Sprintf("%s.%d", strings.SplitN(c.path, ".", 2)[0], c.n)
	c.tell("  %s", to)
	if err := os.Rename(c.path, to); err != nil {
		return err
	}
	c.path, c.name = to, filepath.Base(to)
	return nil
}

// drop empties the kernel's caches: what is read next comes from the disk.
func (c *churn) drop() error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return err
	}
	return c.compare(c.f, 0, len(c.model))
}

// trafficMain runs the process, if this is one.
func trafficMain() {
	text := os.Getenv(trafficEnv)
	if text == "" {
		return
	}
	runtime.GOMAXPROCS(2)
	var j trafficJob
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		var r trafficReport
		if r, err = runTraffic(j); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
