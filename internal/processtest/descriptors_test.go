package processtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// limited runs a program with at most n descriptors.
func limited(n int) []string {
	return []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, n)}
}

// open counts the descriptors of a process.
func (p *process) open() int {
	p.t.Helper()
	l, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return len(l)
}

// goesBackTo waits until no more descriptors are open than before.
func (p *process) goesBackTo(most int) {
	p.t.Helper()
	until := time.Now().Add(10 * time.Second)
	n := p.open()
	for ; n > most && time.Now().Before(until); n = p.open() {
		time.Sleep(10 * time.Millisecond)
	}
	if n > most { // and not a count anew: connections that waited to be accepted come in waves
		l, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
		var what []string
		for _, e := range l {
			s, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.cmd.Process.Pid, e.Name()))
			what = append(what, e.Name()+"="+s)
		}
		p.t.Errorf("%d descriptors are open, %d were before: %v", n, most, what)
	}
}

// roundTrip sends one datagram from a socket to itself.
func roundTrip(s *rdsd.Socket) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Send(ctx, s.LocalAddr(), []byte("x")); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := s.Recv(ctx); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

// TestFewDescriptors: with so few that they are soon used up, whoever comes too late is
// told which limit it was, those who are there go on, and when they leave all is as
// before.
func TestFewDescriptors(t *testing.T) {
	for _, limit := range []int{64, 80, 96, 128} {
		for _, front := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
			t.Run(fmt.Sprintf("%d %v", limit, front), func(t *testing.T) {
				d := dir(t)
				p := run(t, limited(limit), serveArgs(t, d)...)
				p.says("serving")
				warm(t, filepath.Join(d, "s"))
				before := p.open()
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				var clients []*rdsd.Client
				var sockets []*rdsd.Socket
				var refused error
				for range 2 * limit {
					c, err := rdsd.Dial(filepath.Join(d, "s"), rdsd.WithFrontEnd(front))
					if err != nil {
						t.Fatal(err)
					}
					clients = append(clients, c)
					once, stop := context.WithTimeout(ctx, 10*time.Second)
					s, err := c.Bind(once, netip.MustParseAddrPort("127.0.0.1:0"))
					stop()
					if err != nil {
						refused = err
						break
					}
					sockets = append(sockets, s)
				}
				if refused == nil || !strings.Contains(refused.Error(), "RLIMIT_NOFILE") {
					t.Errorf("the refusal does not name the limit: %v", refused)
				}
				if len(sockets) < 2 {
					t.Fatalf("only %d sockets of %d descriptors: %v", len(sockets), limit, refused)
				}
				for i, s := range sockets {
					if err := roundTrip(s); err != nil {
						t.Errorf("socket %d: %v", i, err)
					}
				}
				for _, s := range sockets {
					s.Close()
				}
				for _, c := range clients {
					c.Close()
				}
				p.goesBackTo(before)
				if err := status(d); err != nil {
					t.Errorf("status: %v", err)
				}
				warm(t, filepath.Join(d, "s"))
				p.signal(syscall.SIGTERM)
				if code := p.exit(); code != 0 {
					t.Errorf("exit code %d", code)
				}
			})
		}
	}
}

// status asks the daemon how it is.
func status(d string) error {
	c, err := rdsd.Dial(filepath.Join(d, "s"))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = c.Admin().Status(ctx)
	return err
}

// warm has a daemon do once what opens descriptors for good.
func warm(t *testing.T, socket string) {
	t.Helper()
	for _, err := range useOnce(socket) {
		t.Error(err)
	}
}

// recovers has a daemon do it within 10 s: connections that were closed before they were accepted are
// accepted after others have gone, and take descriptors once more.
func recovers(t *testing.T, socket string) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		errs := useOnce(socket)
		if len(errs) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatal(errors.Join(errs...))
		}
	}
}

// useOnce opens a socket in each way there is and sends a datagram through it.
func useOnce(socket string) (errs []error) {
	for _, f := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
		if err := useFront(socket, f); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", f, err))
		}
	}
	return errs
}

func useFront(socket string, f rdsd.FrontEnd) error { return useFrontAt(socket, "127.0.0.1", f) }

func useFrontAt(socket, at string, f rdsd.FrontEnd) error {
	c, err := rdsd.Dial(socket, rdsd.WithFrontEnd(f))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := c.Bind(ctx, netip.AddrPortFrom(netip.MustParseAddr(at), 0))
	if err != nil {
		return err
	}
	defer s.Close()
	return roundTrip(s)
}

// TestExhaustedDescriptors: connections that say nothing take every descriptor there is
// for strangers, and the daemon lives, keeps some for itself, and recovers.
func TestExhaustedDescriptors(t *testing.T) {
	d := dir(t)
	p := run(t, limited(64), serveArgs(t, d)...)
	p.says("serving")
	warm(t, filepath.Join(d, "s"))
	before := p.open()
	for _, network := range []string{"unix", "unixpacket"} {
		path := filepath.Join(d, "s")
		if network == "unixpacket" {
			path += ".rings"
		}
		var conns []net.Conn
		for range 200 {
			c, err := net.DialTimeout(network, path, time.Second)
			if err != nil {
				t.Fatalf("%s: %v", network, err)
			}
			conns = append(conns, c)
		}
		// What gRPC's clients are told is an answer to their call: TestFewDescriptors.
		for told := network == "unix"; !told; {
			if len(conns) > 400 {
				t.Fatal("of 200 more not one was told of the limit")
			}
			c, err := net.DialTimeout(network, path, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
			buf := make([]byte, 4096)
			c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)) // one that got in hears nothing
			n, _ := c.Read(buf)
			told = strings.Contains(string(buf[:n]), "RLIMIT_NOFILE")
			time.Sleep(20 * time.Millisecond) // of those that do not listen only a few are told at once
		}
		for _, c := range conns {
			c.Close()
		}
		p.goesBackTo(before)
		recovers(t, filepath.Join(d, "s"))
	}
	select {
	case <-p.done:
		t.Error("the daemon ended")
	default:
	}
}

// TestFewDescriptorsForFiles: a peer opens files below a root until there are no descriptors for
// more: it is told so, those it has go on, and clients, links and the administrator have theirs.
func TestFewDescriptorsForFiles(t *testing.T) {
	const limit = 128
	root, conf := t.TempDir(), filepath.Join(t.TempDir(), "rdsd.toml")
	for i := range limit {
		if err := os.WriteFile(filepath.Join(root, fmt.Sprint(i)), make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(conf, fmt.Appendf(nil, "version = 1\n[[volumes.roots]]\npath = %q\n", root), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startPair(t, append([]string{"RDSD_CONFIG=" + conf}, limited(limit)...)...)
	p.a.says("serving")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := rdsd.Dial(filepath.Join(p.dirB, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var refused error
	var mapped []string
	for i := 0; i < limit && refused == nil; i++ {
		once, stop := context.WithTimeout(ctx, 5*time.Second)
		m, err := c.Volumes().Map(once, rdsd.MapSpec{Node: addrA, Name: fmt.Sprint(i)})
		stop()
		if refused = err; err == nil {
			mapped = append(mapped, m.ID)
		}
	}
	t.Logf("%d files were opened with %d descriptors; then: %v", len(mapped), limit, refused)
	if refused == nil || len(mapped) < 4 {
		t.Errorf("%d files were opened: %v", len(mapped), refused)
	}
	for _, f := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
		if err := p.across(f); err != nil {
			t.Errorf("%v: %v", f, err)
		}
	}
	if err := status(p.dirA); err != nil {
		t.Errorf("status: %v", err)
	}
	for _, id := range mapped {
		if err := c.Volumes().Unmap(ctx, id, false); err != nil {
			t.Errorf("unmap: %v", err)
		}
	}
}
