package processtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// whileRunning are the calls of a daemon that serves: binds, accepts, dials, exports,
// maps, attaches, saves and stores. epoll_pwait, and what Go's runtime asks for its own
// memory and threads, is not among them: without those a Go program ends. Nor is EAGAIN
// of what Go's poller waits for: if it is not true the edge that it waits for never comes.
var whileRunning = []struct{ call, errs string }{
	{"socket", "EMFILE ENFILE ENOMEM"},
	{"bind", "EADDRINUSE ENOMEM"},
	{"listen", "EADDRINUSE"},
	{"accept4", "EMFILE ENFILE ENOMEM ECONNABORTED EINTR"},
	{"connect", "ENOMEM EAGAIN"},
	{"openat", "EMFILE ENFILE ENOMEM EIO ENOSPC EINTR"},
	{"memfd_create", "EMFILE ENFILE ENOMEM"},
	{"ftruncate", "ENOSPC EIO EINTR"},
	{"fallocate", "ENOSPC EIO EINTR"},
	{"eventfd2", "EMFILE ENFILE ENOMEM"},
	{"socketpair", "EMFILE ENFILE ENOMEM"},
	{"epoll_ctl", "ENOMEM ENOSPC"},
	{"epoll_pwait2", "EINTR"},
	{"timerfd_settime", "ENOMEM"},
	{"fcntl", "EMFILE"},
	{"fsync", "EIO ENOSPC EINTR"},
	{"fdatasync", "EIO ENOSPC EINTR"},
	{"renameat", "EIO ENOSPC"},
	{"unlinkat", "EIO"},
	{"getsockopt", "ENOMEM"},
	{"setsockopt", "ENOMEM"},
	{"sendmsg", "EINTR ENOMEM"},
	{"recvmsg", "EINTR ENOMEM"},
	{"pwrite64", "EIO ENOSPC EINTR"},
	{"preadv2", "EIO EAGAIN EINTR"},
	{"fstat", "EIO ENOMEM"},
}

// TestEverySystemCallWhileRunning: each kind of call fails once in each thread of a
// daemon that serves. Whoever asked is told within its time or does not notice, and
// when the calls succeed again so does everything, with no more descriptors and
// goroutines than before.
func TestEverySystemCallWhileRunning(t *testing.T) {
	strace := mayTrace(t)
	const groups = 4
	for g := range groups {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			t.Parallel()
			r := newRounds(t, strace, startPair(t, fastLinks...))
			r.warm(r.everything())
			i := 0
			for _, x := range whileRunning {
				for _, e := range strings.Fields(x.errs) {
					if i++; i%groups == g {
						r.inject(x.call, e)
					}
				}
			}
			ends(t, r.p.a)
		})
	}
}

// rounds are what is done again and again with a pair.
type rounds struct {
	t          *testing.T
	p          *pair
	strace     string
	a, b       *rdsd.Client
	fds, procs int           // of a, before
	pause      time.Duration // before each thing that is done
	steps      []step
}

// step is a thing that a round does.
type step struct {
	what string
	do   func(context.Context) error
}

// fastLinks is the environment of a daemon whose links come back soon.
var fastLinks = []string{"RDSD_RDS_LANES=1", "RDSD_RDS_RECONNECT_MIN=10ms", "RDSD_RDS_RECONNECT_MAX=50ms"}

func newRounds(t *testing.T, strace string, p *pair) *rounds {
	p.a.says("serving")
	r := &rounds{t: t, p: p, strace: strace}
	for d, c := range map[string]**rdsd.Client{p.dirA: &r.a, p.dirB: &r.b} {
		var err error
		if *c, err = rdsd.Dial(filepath.Join(d, "s"), rdsd.WithFrontEnd(rdsd.GRPC)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*c).Close() })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := r.b.Volumes().Export(ctx, rdsd.ExportSpec{Name: "disk", Kind: rdsd.KindMemory, Size: 1 << 20})
	if err == nil {
		_, err = r.a.Volumes().Export(ctx, rdsd.ExportSpec{Name: "kept", Path: filepath.Join(p.dirA, "kept"), Create: true, Size: 1 << 20, Persist: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.across(rdsd.GRPC); err != nil {
		t.Fatal(err)
	}
	return r
}

// warm sets what a round does, and counts what a has then: what comes and stays does so in the
// first rounds, idle workers for example.
func (r *rounds) warm(steps []step) {
	r.t.Helper()
	r.steps = steps
	for range 3 {
		for _, err := range r.round() {
			r.t.Fatal(err)
		}
		r.fds, r.procs = max(r.fds, r.p.a.open()), max(r.procs, r.goroutines())
	}
}

// round does everything once, and returns what failed.
func (r *rounds) round() (errs []error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, s := range r.steps {
		time.Sleep(r.pause)
		begun := time.Now()
		if err := s.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s, after %v: %w", s.what, time.Since(begun).Round(time.Millisecond), err))
		}
	}
	return errs
}

// everything is what applications and administrators do over TCP and over both front ends.
func (r *rounds) everything() []step {
	at := filepath.Join(r.p.dirA, "s")
	bind := func(f rdsd.FrontEnd) step {
		return step{fmt.Sprint("bind ", f), func(context.Context) error { return useFrontAt(at, addrA, f) }}
	}
	mapped := func(persist bool) step {
		return step{"map", func(ctx context.Context) error {
			return volumeOnce(ctx, r.a, rdsd.MapSpec{Node: addrB, Name: "disk", ID: "m", Persist: persist})
		}}
	}
	return []step{
		bind(rdsd.Rings), bind(rdsd.GRPC),
		{"drop", func(ctx context.Context) error {
			_, err := r.a.Admin().DropPaths(ctx, rdsd.PeerFilter{Remote: netip.MustParseAddr(addrB)})
			return err
		}},
		{"dial", func(context.Context) error { return r.p.across(rdsd.GRPC) }},
		{"export", func(ctx context.Context) error {
			_, err := r.a.Volumes().Export(ctx, rdsd.ExportSpec{Name: "x", Path: filepath.Join(r.p.dirA, "x"), Create: true, Size: 1 << 20, Persist: true})
			if err == nil {
				err = r.a.Volumes().Unexport(ctx, "x", true)
			}
			return err
		}},
		mapped(false), mapped(true),
		{"store", func(ctx context.Context) error {
			return volumeOnce(ctx, r.b, rdsd.MapSpec{Node: addrA, Name: "kept", ID: "m"})
		}},
	}
}

// volumeOnce maps a volume, writes, flushes, reads, and unmaps it.
func volumeOnce(ctx context.Context, c *rdsd.Client, what rdsd.MapSpec) error {
	m, err := c.Volumes().Map(ctx, what)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	err = attachOnce(ctx, m.URI)
	if e := c.Volumes().Unmap(ctx, what.ID, true); e != nil {
		err = errors.Join(err, fmt.Errorf("unmap: %w", e))
	}
	return err
}

func attachOnce(ctx context.Context, uri string) error {
	n, err := nbd.DialURI(ctx, uri)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer n.Close()
	defer context.AfterFunc(ctx, func() { n.Close() })()
	data := bytes.Repeat([]byte("volume"), 2048)[:8192]
	got := make([]byte, len(data))
	if _, err = n.WriteAt(data, 4096); err == nil {
		err = n.WriteZeroes(65536, 4096)
	}
	if err == nil {
		err = n.Flush()
	}
	if err == nil {
		_, err = n.ReadAt(got, 4096)
	}
	if err == nil && !bytes.Equal(got, data) {
		err = errors.New("what was read is not what was written")
	}
	return err
}

// tidy ends what a round has left that failed in its middle.
func (r *rounds) tidy() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.a.Volumes().Unmap(ctx, "m", true)
	r.b.Volumes().Unmap(ctx, "m", true)
	r.a.Volumes().Unexport(ctx, "x", true)
}

// inject lets one call of each thread fail during a round, once or more often.
func (r *rounds) inject(call, errno string) {
	r.t.Helper()
	passes := 1
	if *everyCall {
		passes = 10
	}
	hits := 0
	for pass := 1; pass <= passes; pass++ {
		hits += r.injectOnce(call, errno, pass)
	}
	// What depends on the time between two events, as a reactor's rest does, is met by a
	// round in which they are apart.
	for try := time.Duration(1); hits == 0 && try <= 10; try++ {
		r.pause = try * 10 * time.Millisecond
		hits += r.injectOnce(call, errno, 1)
	}
	r.pause = 0
	if hits == 0 {
		r.t.Errorf("%s never failed with %s: the rounds do not come by it", call, errno)
	}
}

// injectOnce lets the call of that number of each thread fail during a round, and returns how
// many threads made it.
func (r *rounds) injectOnce(call, errno string, pass int) (hits int) {
	r.t.Helper()
	what := fmt.Sprintf("%s %s %d", call, errno, pass)
	trace := filepath.Join(r.p.dirA, "trace")
	stop := r.trace(trace, call, fmt.Sprintf("inject=%s:error=%s:when=%d", call, errno, pass))
	errs := r.round()
	stop()
	b, err := os.ReadFile(trace)
	if err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-r.p.a.done:
		r.t.Fatalf("%s: the daemon ended with %d", what, r.p.a.cmd.ProcessState.ExitCode())
	default:
	}
	for _, err := range errs {
		if errors.Is(err, context.DeadlineExceeded) {
			r.t.Errorf("%s: no answer: %v", what, err)
		} else if errno == "EINTR" {
			r.t.Errorf("%s: a signal is no failure: %v", what, err)
		} else {
			r.t.Logf("note: %s: %v", what, err)
		}
	}
	r.tidy()
	eventually(r.t, what+": afterwards", func() error { return errors.Join(r.round()...) })
	r.nothingLeft(what)
	return bytes.Count(b, []byte("(INJECTED)"))
}

// nothingLeft waits until there are as many descriptors and goroutines as at first: a store that
// could not be opened is looked at again after 30 s. If that does not come the daemon is made to
// show its stacks.
func (r *rounds) nothingLeft(what string) {
	r.t.Helper()
	var fds, procs int
	for until := time.Now().Add(45 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if fds, procs = r.p.a.open(), r.goroutines(); fds <= r.fds && procs <= r.procs {
			return
		}
	}
	r.p.a.goesBackTo(r.fds) // names them
	r.p.a.signal(syscall.SIGQUIT)
	r.p.a.exit()
	r.t.Fatalf("%s: left over: %d descriptors, %d before; %d goroutines, %d before", what, fds, r.fds, procs, r.procs)
}

// trace attaches strace to every thread of a; what it returns detaches it.
func (r *rounds) trace(out, call, inject string) (stop func()) {
	r.t.Helper()
	pid := r.p.a.cmd.Process.Pid
	cmd := exec.Command(r.strace, "-f", "-qqq", "-o", out, "-p", strconv.Itoa(pid), "-e", "trace="+call, "-e", "signal=none", "-e", inject)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "strace traces", func() error {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, name := range all {
			b, err := os.ReadFile(name)
			if err == nil && bytes.Contains(b, []byte("TracerPid:\t0\n")) {
				return fmt.Errorf("not %s", name)
			}
		}
		return err
	})
	return func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines is how many a has.
func (r *rounds) goroutines() int {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + r.p.page + "/metrics")
	if err != nil {
		return 1 << 30 // eventually it answers
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	m := goroutines.FindSubmatch(b)
	if m == nil {
		return 1 << 30
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
