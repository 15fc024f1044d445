package kernelnbd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var everyCall = flag.Bool("every", false, "let calls on the way of a kernel device fail later as well")

// ofKernelDevices are the calls by which a volume becomes a kernel device and ceases to be one.
// Of some the first few of a thread are others', its dials' for example.
var ofKernelDevices = []struct {
	call, errs string
	passes     int
	of         string // the file it fails on; any without one
}{
	{"socket", "EMFILE", 5, ""},
	{"setsockopt", "ENOMEM", 3, ""},
	{"bind", "ENOMEM", 3, ""},
	{"sendto", "ENOBUFS", 4, ""},
	{"recvfrom", "ENOMEM", 4, ""},
	{"sendto", "EINTR", 1, ""},
	{"recvfrom", "EINTR", 1, ""},
	{"socketpair", "EMFILE", 1, ""},
	{"fcntl", "EMFILE", 1, ""},
	{"openat", "EMFILE EIO EINTR", 1, ""},
	{"read", "EIO EINTR", 1, ""},
	{"write", "EINTR", 1, ""},
	// Of an eventfd, by which Go's runtime wakes its poller, it never fails so: the runtime gives up.
	{"write", "EIO", 1, "volumes.json.new"},
	{"epoll_ctl", "ENOMEM", 1, ""},
}

// TestEverySystemCallOfAKernelDevice: while a volume becomes a kernel device, is written to, read and
// unmapped, each kind of call fails once in each thread of the daemon. Whoever asked is told, no device is left
// that nobody has, and when the calls succeed again so does everything, with no more descriptors than before.
func TestEverySystemCallOfAKernelDevice(t *testing.T) {
	guest(t, func(t *testing.T) {
		run(t, "ip", "link", "set", "lo", "up")
		store, app := newDaemon(t, "127.0.0.2"), newDaemon(t, "127.0.0.1")
		store.volume("export", "disk", emptyFile(t, 8<<20))
		c, err := rdsd.Dial(app.socket(), rdsd.WithFrontEnd(rdsd.GRPC))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		r := &deviceRounds{t: t, app: app, c: c}
		go r.tellEnd()
		for i := range 2 {
			t.Log("round ", i)
			if err := r.round(); err != nil {
				t.Fatal(err)
			}
			r.fds = max(r.fds, r.open())
		}
		for _, x := range ofKernelDevices {
			if *everyCall {
				x.passes = 10
			}
			for _, e := range strings.Fields(x.errs) {
				hits := 0
				for pass := range x.passes {
					hits += r.inject(x.call, e, pass+1, x.of)
				}
				if hits == 0 {
					t.Errorf("%s never failed with %s: the rounds do not come by it", x.call, e)
				}
			}
		}
	})
}

// deviceRounds map a volume as a kernel device again and again.
type deviceRounds struct {
	t   *testing.T
	app *daemon
	c   *rdsd.Client
	fds int // of the daemon, before
}

func (r *deviceRounds) round() (err error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	m, err := r.c.Volumes().Map(ctx, rdsd.MapSpec{Node: "127.0.0.2", Name: "disk", ID: "m", Attach: rdsd.AttachNBD, Persist: true})
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	if err = useDevice(m.Device); err != nil {
		err = fmt.Errorf("use: %w", err)
	}
	if e := r.c.Volumes().Unmap(ctx, "m", false); e != nil {
		err = errors.Join(err, fmt.Errorf("unmap: %w", e))
	}
	return err
}

// useDevice writes to a device, and reads what it has written from the volume.
func useDevice(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data, got := aligned(directUnit), aligned(directUnit)
	copy(data, bytes.Repeat([]byte("volume"), directUnit))
	if _, err := f.WriteAt(data, 4096); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := f.ReadAt(got, 4096); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("what was read is not what was written")
	}
	return nil
}

// inject lets the call of that number of each thread fail during a round, and returns how many did.
func (r *deviceRounds) inject(call, errno string, pass int, of string) int {
	r.t.Helper()
	what := fmt.Sprintf("%s %s %d", call, errno, pass)
	r.t.Log(what) // a sign of life
	trace := filepath.Join(r.app.dir, "trace")
	pid := r.app.cmd.Process.Pid
	cmd := exec.Command("strace", "-f", "-qqq", "-o", trace, "-p", strconv.Itoa(pid), "-e", "trace="+call, "-e", "signal=none",
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d", call, errno, pass))
	if of != "" {
		cmd.Args = append(cmd.Args, "-P", filepath.Join(r.app.dir, "state", of))
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	until(r.t, "strace traces", 10*time.Second, func() bool { return traced(pid) })
	err := r.round()
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	b, e := os.ReadFile(trace)
	if e != nil {
		r.t.Fatal(e)
	}
	switch {
	case err == nil:
	case errors.Is(err, context.DeadlineExceeded):
		r.t.Errorf("%s: no answer: %v", what, err)
	case errno == "EINTR":
		r.t.Errorf("%s: a signal is no failure: %v", what, err)
	default:
		r.t.Logf("note: %s: %v", what, err)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
		r.c.Volumes().Unmap(ctx, "m", true) // of a round that failed in its middle
		cancel()
	}
	r.nothingLeft(what)
	if err := r.round(); err != nil {
		r.t.Errorf("%s: afterwards: %v", what, err)
	}
	return bytes.Count(b, []byte("(INJECTED)"))
}

// nothingLeft waits until no device is attached, and the daemon has no more descriptors than at first.
func (r *deviceRounds) nothingLeft(what string) {
	r.t.Helper()
	until(r.t, what+": no device is left", 10*time.Second, func() bool {
		all, err := nbd.Status(nbd.AnyDevice)
		for _, attached := range all {
			if attached {
				return false
			}
		}
		return err == nil
	})
	until(r.t, what+": no descriptor is left", 10*time.Second, func() bool { return r.open() <= r.fds })
}

// tellEnd says that the daemon has ended by itself: whoever uses its device waits until it is back.
func (r *deviceRounds) tellEnd() {
	name := fmt.Sprintf("/proc/%d/stat", r.app.cmd.Process.Pid)
	for {
		select {
		case <-r.t.Context().Done():
			return
		case <-time.After(time.Second):
		}
		if b, err := os.ReadFile(name); err != nil || bytes.Contains(b, []byte(") Z ")) {
			fmt.Fprintf(os.Stdout, "the daemon has ended:\n%s\n", r.app.log.String())
			return
		}
	}
}

// open counts the daemon's descriptors.
func (r *deviceRounds) open() int {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.app.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	return len(all)
}

// traced tells whether each thread of a process has a tracer.
func traced(pid int) bool {
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, name := range all {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte("TracerPid:\t0\n")) {
			return false
		}
	}
	return err == nil && len(all) > 0
}
