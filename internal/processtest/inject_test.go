package processtest

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
)

var everyCall = flag.Bool("processtest.every", false, "let calls fail later on their way as well: minutes")

// injections are the calls that the daemon makes on its way up, for a client, for a
// peer and for volumes, with the errors that each can meet. Calls of memory management
// are not among them: without memory Go's runtime ends a program.
var injections = []struct {
	call   string
	errs   string
	passes int // of the daemon's threads, in the order in which they come
}{
	{"socket", "EMFILE ENFILE ENOMEM", 3},
	{"bind", "EADDRINUSE ENOMEM EIO", 3},
	{"listen", "EADDRINUSE", 2},
	{"accept4", "EMFILE ENFILE ENOMEM ECONNABORTED EAGAIN EINTR", 4},
	{"connect", "ENOMEM EAGAIN EINTR", 2},
	{"openat", "EMFILE ENFILE ENOMEM EIO EINTR", 12},
	{"memfd_create", "EMFILE ENFILE ENOMEM", 2},
	{"ftruncate", "ENOSPC EIO EINTR", 3},
	{"fallocate", "ENOSPC EIO EINTR", 3},
	{"eventfd2", "EMFILE ENFILE ENOMEM", 3},
	{"socketpair", "EMFILE ENFILE ENOMEM", 2},
	{"epoll_create1", "EMFILE ENFILE ENOMEM", 3},
	{"timerfd_create", "EMFILE ENFILE ENOMEM", 2},
	{"fcntl", "EMFILE", 8},
	{"flock", "EINTR ENOMEM", 3},
	{"fsync", "EIO ENOSPC EINTR", 2},
	{"renameat", "EIO ENOSPC", 2},
	{"getsockopt", "ENOMEM", 3},
	{"setsockopt", "ENOMEM", 4},
	{"sendmsg", "EAGAIN EINTR ENOMEM", 3},
	{"recvmsg", "EAGAIN EINTR ENOMEM", 3},
	{"mkdirat", "ENOSPC EIO", 2},
	{"fchmodat", "EIO", 2},
}

// TestEverySystemCallFailsOnce: with the error told to whoever asked, or the start given
// up with a documented code. What comes afterwards finds a daemon as it should be.
func TestEverySystemCallFailsOnce(t *testing.T) {
	strace := mayTrace(t)
	for _, x := range injections {
		passes := x.passes
		if *everyCall {
			passes *= 5
		}
		for pass := 1; pass <= passes; pass++ {
			for _, e := range strings.Fields(x.errs) {
				t.Run(fmt.Sprintf("%s %s %d", x.call, e, pass), func(t *testing.T) {
					t.Parallel()
					injectOnce(t, strace, x.call, e, pass)
				})
			}
		}
	}
}

// mayTrace finds strace.
func mayTrace(t *testing.T) string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace: make setup installs it")
	}
	if out, err := exec.Command(strace, "-f", "-o", "/dev/null", "-e", "inject=socket:error=EMFILE:when=1000", "true").CombinedOutput(); err != nil {
		t.Skipf("elsewhere: strace may not trace here: %v %s", err, out)
	}
	return strace
}

func injectOnce(t *testing.T, strace, call, errno string, pass int) {
	d := dir(t)
	p := run(t, []string{strace, "-D", "-f", "-qqq", "-o", "/dev/null", "-e", "trace=" + call, "-e", "signal=none",
		"-e", fmt.Sprintf("inject=%s:error=%s:when=%d", call, errno, pass)}, serveArgs(t, d)...)
	for begun := time.Now(); !strings.Contains(p.out.String(), "msg=serving"); time.Sleep(5 * time.Millisecond) {
		select {
		case <-p.done:
			refusedToStart(t, p)
			return
		default:
		}
		if time.Since(begun) > 40*time.Second {
			t.Fatal("it neither serves nor ends")
		}
	}
	// Whoever meets the error is told; the next, or the one after it, is served. Each
	// thread of the daemon has an error of its own to meet.
	socket := filepath.Join(d, "s")
	for begun := time.Now(); ; {
		err := errors.Join(useOnce(socket)...)
		if err == nil {
			break
		}
		select {
		case <-p.done:
			t.Fatalf("it ended with %d after %v", p.cmd.ProcessState.ExitCode(), err)
		default:
		}
		if time.Since(begun) > 40*time.Second {
			t.Fatalf("it does not serve any more: %v", err)
		}
	}
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if out := p.out.String(); strings.Contains(out, "panic") {
		t.Error("something panicked")
	}
}

// refusedToStart checks the end of a daemon that could not start: a documented code, and
// the reason as the last thing said.
func refusedToStart(t *testing.T, p *process) {
	t.Helper()
	out := p.out.String()
	switch code := p.exit(); {
	case code == failed && strings.Contains(out, "the daemon ends"):
	case code == config && strings.Contains(out, "rdsd: "):
	case code == 2 && strings.Contains(out, "runtime: "): // Go's own start
	case code == guard.ExitCode:
		t.Error("a system call that failed was taken for a bug")
	default:
		t.Errorf("it ended with %d, saying %q", code, out)
	}
}
