package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// leakChecked fails the run when a test left a goroutine behind.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	code := m.M.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			return 1
		}
	}
	return code
}

func TestMain(m *testing.M) {
	program := func() { os.Exit(Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
	testscript.Main(leakChecked{m}, map[string]func(){
		"rdsd": program, "rds-ping": program, "rds-info": program, "rds-stress": program,
	})
}

// TestScripts runs every testdata/*.txtar: the program as its users run it.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    cmdExits,
			"fake":     cmdFake,
			"still":    cmdStill,
			"daemon":   cmdDaemon,
			"bound":    cmdBound,
			"sleeper":  cmdSleeper,
			"queued":   cmdQueued,
			"image":    cmdImage,
			"begins":   cmdBegins,
			"written":  cmdWritten,
			"addsup":   cmdAddsUp,
			"problem":  cmdProblem,
			"sent":     cmdSent,
			"unpacked": cmdUnpacked,
			"lacks":    cmdLacks,
			"waits":    cmdWaits,
			"port": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Setenv("PORT", strconv.Itoa(int(freePort(ts))))
			},
			"up": func(ts *testscript.TestScript, _ bool, args []string) {
				poll(ts, "a daemon at "+args[0], func(ctx context.Context) bool {
					c, err := dialTarget(ctx, args[0])
					if err != nil {
						return false
					}
					defer c.Close()
					_, err = c.Admin().Status(ctx)
					return err == nil
				})
			},
		},
		Condition: func(cond string) (bool, error) {
			if cond != "ipv6" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			l, err := net.Listen("tcp6", "[::1]:0")
			if err == nil {
				l.Close()
			}
			return err == nil, nil
		},
		Setup: func(env *testscript.Env) error {
			env.Setenv("RDSD_SOCKET", filepath.Join(env.WorkDir, "rdsd.sock"))
			// The race detector lets a process sleep for a second before it ends.
			env.Setenv("GORACE", "atexit_sleep_ms=0 halt_on_error=1")
			return nil
		},
	})
}

// cmdExits is `exits CODE PROGRAM ARGS...`: run it, and want that exit code.
func cmdExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = e.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%v exited with %d, not %d", args[1:], got, want)
	}
}

// cmdFake is `fake`: serve the fixed story at RDSD_SOCKET.
func cmdFake(ts *testscript.TestScript, _ bool, _ []string) {
	stop, err := serveFake(ts.Getenv("RDSD_SOCKET"))
	ts.Check(err)
	ts.Defer(stop)
}

// cmdStill is `still`: a daemon at RDSD_SOCKET that stands still. The kernel takes connections for it.
func cmdStill(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("unix", ts.Getenv("RDSD_SOCKET"))
	ts.Check(err)
	ts.Defer(func() { l.Close() })
}

// nextAddr gives every daemon of the tests its own loopback address.
var nextAddr atomic.Uint32

// cmdDaemon is `daemon NAME[=ADDR]...`: start one node for each name, all of
// them peers, and set NAME to its address and NAME_SOCKET to its socket. RDSD_SOCKET
// becomes the first one's.
func cmdDaemon(ts *testscript.TestScript, _ bool, names []string) {
	port, volumes := freePort(ts), freePort(ts)
	for i, name := range names {
		addr := netip.AddrFrom4([4]byte{127, 0, 21, byte(nextAddr.Add(1))})
		if before, after, ok := strings.Cut(name, "="); ok {
			name, addr = before, netip.MustParseAddr(after)
		}
		socket := filepath.Join(ts.Getenv("WORK"), name+".sock")
		cfg := config.Default()
		cfg.RDS.Addresses = []netip.Addr{addr}
		cfg.RDS.Port = port
		cfg.API.Socket = socket
		cfg.HTTP.Listen = ""
		cfg.Volumes.Port, cfg.Volumes.Name = volumes, name
		cfg.API.DrainTimeout.Duration = 0
		d, err := node.New(cfg, slog.New(slog.DiscardHandler))
		ts.Check(err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		ts.Defer(func() { cancel(); <-done })
		<-d.Ready()
		if _, err := os.Stat(socket); err != nil {
			cancel()
			ts.Fatalf("daemon %s did not start: %v", name, <-done)
		}
		ts.Setenv(name, addr.String())
		ts.Setenv(name+"_SOCKET", socket)
		if i == 0 {
			ts.Setenv("RDSD_SOCKET", socket)
		}
	}
	ts.Setenv("RDSPORT", strconv.Itoa(int(port)))
}

func freePort(ts *testscript.TestScript) uint16 {
	port, err := freeport.On()
	ts.Check(err)
	return port
}

// poll waits until ok, for at most 20 seconds.
func poll(ts *testscript.TestScript, what string, ok func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok(ctx) {
		select {
		case <-ctx.Done():
			ts.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// cmdBound is `bound SOCKET ADDR:PORT`: wait until somebody has bound it.
func cmdBound(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	defer c.Close()
	poll(ts, "somebody to bind "+args[1], func(ctx context.Context) bool {
		list, err := c.Admin().Sockets(ctx)
		return err == nil && slices.ContainsFunc(list, func(s rdsd.SocketInfo) bool { return s.Local.String() == args[1] })
	})
}

// cmdSleeper is `sleeper SOCKET ADDR:PORT BYTES`: bind with that receive buffer
// and never read.
func cmdSleeper(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	bytes, err := strconv.Atoi(args[2])
	ts.Check(err)
	s, err := c.Bind(context.Background(), netip.MustParseAddrPort(args[1]), rdsd.WithRecvBuffer(bytes), rdsd.WithRecvWindow(1, 1), rdsd.WithLabel("sleeper"))
	ts.Check(err)
	ts.Defer(func() { s.Close(); c.Close() })
}

// cmdQueued is `queued SOCKET N`: wait until so many datagrams wait to be sent.
func cmdQueued(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	defer c.Close()
	poll(ts, args[1]+" datagrams to be queued", func(ctx context.Context) bool {
		list, _, err := c.Admin().Queue(ctx, rdsd.QueueSend, 0)
		return err == nil && strconv.Itoa(len(list)) == args[1]
	})
}

// cmdImage is `image FILE BYTES`: write a file of that size with a hole in it.
func cmdImage(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	b := make([]byte, n)
	rand.New(rand.NewSource(1)).Read(b)
	clear(b[n/3 : n/2])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b, 0o600))
}

// cmdWritten is `written FILE`: wait until there is something in it. What a command
// in the background says is readable nowhere else before it ends, and that a
// daemon knows its socket does not mean that the command does.
func cmdWritten(ts *testscript.TestScript, _ bool, args []string) {
	file := ts.MkAbs(args[0])
	poll(ts, "something in "+args[0], func(context.Context) bool {
		i, err := os.Stat(file)
		return err == nil && i.Size() > 0
	})
}

// cmdProblem is `problem SOCKET CODE`: wait until the daemon there has such a problem.
func cmdProblem(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	defer c.Close()
	poll(ts, "the problem "+args[1], func(ctx context.Context) bool {
		st, err := c.Admin().Status(ctx)
		return err == nil && slices.ContainsFunc(st.Problems, func(p rdsd.Problem) bool { return p.Code == args[1] })
	})
}

// cmdUnpacked is `unpacked FILE`: put what is in an archive of bugreport into out.
func cmdUnpacked(ts *testscript.TestScript, _ bool, args []string) {
	r, err := openReport(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(os.MkdirAll(ts.MkAbs("out"), 0o755))
	for name, b := range r.files {
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs("out"), name), b, 0o600))
	}
}

// cmdLacks is `lacks DIR TEXT`: no file in it has TEXT, and there are files.
func cmdLacks(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(filepath.Join(ts.MkAbs(args[0]), "*"))
	ts.Check(err)
	if len(files) < 10 {
		ts.Fatalf("there are %d files in %s", len(files), args[0])
	}
	for _, f := range files {
		if strings.Contains(ts.ReadFile(f), args[1]) {
			ts.Fatalf("%s has %s in it", f, args[1])
		}
	}
}

// cmdSent is `sent SOCKET N`: wait until a socket there has had so many delivered.
func cmdSent(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	defer c.Close()
	least, err := strconv.ParseUint(args[1], 10, 64)
	ts.Check(err)
	poll(ts, args[1]+" datagrams to be delivered", func(ctx context.Context) bool {
		list, err := c.Admin().Sockets(ctx)
		return err == nil && slices.ContainsFunc(list, func(s rdsd.SocketInfo) bool { return s.Delivered >= least })
	})
}

// cmdWaits is `waits SOCKET ADDR:PORT N`: wait until N sockets there wait for the port.
func cmdWaits(ts *testscript.TestScript, _ bool, args []string) {
	c, err := dialTarget(context.Background(), args[0])
	ts.Check(err)
	defer c.Close()
	poll(ts, args[2]+" sockets to wait for "+args[1], func(ctx context.Context) bool {
		list, _, err := c.Admin().Congestion(ctx)
		return err == nil && slices.ContainsFunc(list, func(p rdsd.CongestedPort) bool {
			return p.Endpoint.String() == args[1] && fmt.Sprint(p.WaitingSenders) == args[2]
		})
	})
}

// cmdAddsUp is `addsup FILE LEAST`: the JSON report of a send in FILE (or stdout)
// accepted at least so many datagrams, and its four outcomes add up to them.
func cmdAddsUp(ts *testscript.TestScript, _ bool, args []string) {
	var r sendReport
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &r))
	least, err := strconv.ParseUint(args[1], 10, 64)
	ts.Check(err)
	if sum := r.Delivered + r.Cancelled + r.Failed + r.Unknown; sum != r.Datagrams || sum < least {
		ts.Fatalf("%+v: %d outcomes, and at least %d datagrams ought to have been accepted", r, sum, least)
	}
}

// cmdBegins is `begins FILE START`: FILE begins with what is in START, and goes
// on with zeroes.
func cmdBegins(ts *testscript.TestScript, _ bool, args []string) {
	file, start := ts.ReadFile(args[0]), ts.ReadFile(args[1])
	if rest, ok := strings.CutPrefix(file, start); !ok || strings.Trim(rest, "\x00") != "" {
		ts.Fatalf("%s (%d bytes) does not begin with %s (%d bytes)", args[0], len(file), args[1], len(start))
	}
}
