package processtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// pair is two daemons that reach each other: a, which panics where it is told to, and b.
type pair struct {
	t          *testing.T
	a, b       *process
	dirA, dirB string
	page       string
}

// where a and b are.
const addrA, addrB = "127.0.23.2", "127.0.23.3"

func startPair(t *testing.T, env ...string) *pair {
	t.Helper()
	return startPairWith(t, nil, env...)
}

// startPairWith starts a pair with an environment of both, and more of a's.
func startPairWith(t *testing.T, both []string, env ...string) *pair {
	t.Helper()
	at, bt := netip.MustParseAddr(addrA), netip.MustParseAddr(addrB)
	p := &pair{t: t, dirA: dir(t), dirB: dir(t)}
	loopback := netip.MustParseAddr("127.0.0.1")
	p.page = netip.AddrPortFrom(loopback, uint16(rdsdtest.FreePort(t, loopback))).String()
	port, volumes := fmt.Sprint(rdsdtest.FreePort(t, at, bt)), fmt.Sprint(rdsdtest.FreePort(t, at, bt))
	args := func(d, address, page string) []string {
		return []string{"serve", "--socket", filepath.Join(d, "s"), "--address", address, "--port", port, "--volume-port", volumes, "--http", page}
	}
	p.b = run(t, append([]string{"env"}, both...), args(p.dirB, addrB, "")...)
	p.b.says("serving")
	p.a = run(t, slices.Concat([]string{"env"}, both, env), args(p.dirA, addrA, p.page)...)
	return p
}

// cli runs a command of the program, and returns what it said.
func (p *pair) cli(d string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, rdsdtest.Binary(p.t), append([]string{"--socket", filepath.Join(d, "s"), "--timeout", "5s"}, args...)...).CombinedOutput()
	return string(out), err
}

func (p *pair) get(path string) error {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + p.page + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if b, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		return fmt.Errorf("%d: %s", r.StatusCode, b)
	}
	return nil
}

// across sends a datagram from a to b and back, over one way to the daemon.
func (p *pair) across(f rdsd.FrontEnd) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var socks [2]*rdsd.Socket
	for i, at := range []struct{ dir, addr string }{{p.dirA, addrA}, {p.dirB, addrB}} {
		c, err := rdsd.Dial(filepath.Join(at.dir, "s"), rdsd.WithFrontEnd(f))
		if err != nil {
			return err
		}
		defer c.Close()
		if socks[i], err = c.Bind(ctx, netip.AddrPortFrom(netip.MustParseAddr(at.addr), 0)); err != nil {
			return err
		}
	}
	for i := range 2 {
		if err := socks[i].Send(ctx, socks[1-i].LocalAddr(), []byte("x")); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if _, err := socks[1-i].Recv(ctx); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	time.Sleep(2 * time.Millisecond) // the reactor sleeps, so that the next datagram rings
	return socks[0].Send(ctx, socks[1].LocalAddr(), []byte("y"))
}

// use does everything that passes the points, as far as it goes.
func (p *pair) use() []error {
	errs := []error{p.across(rdsd.Rings), p.across(rdsd.GRPC), status(p.dirA), p.get("/metrics")}
	_, err := p.cli(p.dirB, "ping", addrA, "-c", "1")
	return append(errs, err)
}

// useVolumes copies images to a volume in memory and to one in a file of each from the
// other, and back. An export whose copy fails is made anew.
func (p *pair) useVolumes() (errs []error) {
	for _, w := range []struct{ from, to, addr string }{{p.dirA, p.dirB, addrA}, {p.dirB, p.dirA, addrB}} {
		name := filepath.Join(w.to, "image")
		if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
			errs = append(errs, err)
		}
		for volume, store := range map[string]string{"disk": "--memory", "file": filepath.Join(w.from, "store")} {
			args := []string{"volume", "export", volume, store, "--size", "1M", "--allow", "127.0.0.0/8"}
			if volume == "file" {
				args = append(args, "--create")
			}
			if out, err := p.cli(w.from, args...); err != nil && !strings.Contains(out, "already") {
				errs = append(errs, fmt.Errorf("export: %w %s", err, out))
			}
			os.Remove(name + ".back")
			for _, args := range [][]string{{"volume", "copy", name, w.addr + ":" + volume}, {"volume", "copy", w.addr + ":" + volume, name + ".back"}} {
				if out, err := p.cli(w.to, args...); err != nil {
					errs = append(errs, fmt.Errorf("%v: %w %s", args, err, out))
					_, _ = p.cli(w.from, "volume", "unexport", volume, "--force")
				}
			}
		}
	}
	return errs
}

// TestPanicsAreContained: a panic in the work for one, whatever that is, is counted and
// logged with its stack, and afterwards everybody is served.
func TestPanicsAreContained(t *testing.T) {
	for point, what := range map[string]string{
		"call": "call", "decode": "call", "stream": "socket", "client": "socket", "ring.bell": "socket", "ring.control": "socket",
		"reload": "task", "link.ready": "link", "dial": "dial", "accept": "accept", "page": "page", "collect": "page",
		"volume.link": "link", "handshake": "accept", "nbd.haggle": "volume", "nbd.ready": "volume", "save": "task",
		"nbd.send": "volume", "nbd.look": "volume", "store.read": "volume", "store.work": "volume", "store.sync": "volume", "store.memory": "volume",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, "RDSD_PANIC_POINT="+point)
			p.a.says("serving")
			volumes := what == "volume" || point == "volume.link" || point == "handshake" || point == "save"
			all := func() []error {
				if point == "reload" {
					p.a.signal(syscall.SIGHUP)
				}
				if volumes {
					return append(p.use(), p.useVolumes()...)
				}
				return p.use()
			}
			first := all()
			for until := time.Now().Add(20 * time.Second); !strings.Contains(p.a.out.String(), "a panic was contained") && time.Now().Before(until); {
				first = append(first, all()...)
			}
			p.a.says("a panic was contained", "what="+what, "the point "+point+" of a test", "goroutine ")
			for until := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				var bad []error
				for _, err := range all() {
					if err != nil {
						bad = append(bad, err)
					}
				}
				if len(bad) == 0 {
					break
				}
				if time.Now().After(until) {
					t.Fatalf("after the panic: %v\n(when it came: %v)", bad, first)
				}
			}
			if out, err := p.cli(p.dirA, "status"); err != nil {
				t.Errorf("status: %v %s", err, out)
			}
			p.a.signal(syscall.SIGTERM)
			if code := p.a.exit(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestPanicsWithinAStep: nothing goes on with a state that may be half changed.
func TestPanicsWithinAStep(t *testing.T) {
	for _, point := range []string{"step", "step.late"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, "RDSD_PANIC_POINT="+point)
			begun := time.Now()
			for ended := false; !ended; {
				p.use()
				select {
				case <-p.a.done:
					ended = true
				default:
				}
				if time.Since(begun) > 20*time.Second {
					t.Fatal("the daemon goes on")
				}
			}
			if code := p.a.exit(); code != guard.ExitCode {
				t.Errorf("exit code %d, want %d", code, guard.ExitCode)
			}
			p.a.says("it ends, to be started again", "the point "+point+" of a test", "goroutine ")
		})
	}
}
