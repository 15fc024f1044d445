package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var buildDaemon = sync.OnceValues(func() (string, error) {
	l, err := theLab()
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, "rdsd")
	out, err := exec.Command("go", "build", "-o", path, "github.com/rdsd/rdsd/rdsd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build rdsd: %w\n%s", err, out)
	}
	return path, nil
})

// daemon is rdsd, running in the lab's namespace with all our addresses.
type daemon struct {
	*rdsd.Client
	cmd    *exec.Cmd
	socket string
	log    string
	exited chan struct{}
}

func startDaemon(t *testing.T, l *lab) *daemon {
	t.Helper()
	binary, err := buildDaemon()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(l.dir, "d")
	if err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	// The kernel's own longest delay: resets in a row shall not last.
	config.WriteString("version = 1\n[rds]\nreconnect_max = \"1s\"\n")
	for _, p := range []string{"10.9.0.0/24", "fd09::/64"} {
		fmt.Fprintf(&config, "[[peers]]\naddress = %q\nkernel = true\n", p)
	}
	file := filepath.Join(dir, "rdsd.toml")
	if err := os.WriteFile(file, []byte(config.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	d := &daemon{socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log"), exited: make(chan struct{})}
	argv := []string{binary, "serve", "--config", file, "--socket", d.socket, "--http", "",
		"--drain-timeout", "3s"}
	for _, p := range ourPrefixes {
		argv = append(argv, "--address", p.Addr().String())
	}
	log, err := os.Create(d.log)
	if err != nil {
		t.Fatal(err)
	}
	d.cmd = l.ns.Command(argv...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = d.cmd.Start()
	_ = log.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.exited)
	}()
	t.Cleanup(func() {
		d.stop(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the end of rdsd's log:\n%s", d.tail())
		}
	})
	if d.Client, err = rdsd.Dial(d.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if err := d.ready(); err != nil {
		t.Fatalf("rdsd does not start: %v\n%s", err, d.tail())
	}
	return d
}

// again ends the daemon and starts it anew, at the same place.
func (d *daemon) again(t *testing.T, sig syscall.Signal) {
	t.Helper()
	d.stop(t, sig)
	log, err := os.OpenFile(d.log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(d.cmd.Args[0], d.cmd.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	d.cmd, d.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
}

func (d *daemon) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for {
		s, err := d.Bind(ctx, netip.AddrPortFrom(ourPrefixes[0].Addr(), 0))
		if err == nil {
			s.Close()
			// It may have come over rings while gRPC still waits to dial again.
			_, err = d.Admin().Status(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-d.exited:
			return errors.New(d.cmd.ProcessState.String())
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *daemon) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	_ = d.cmd.Process.Signal(sig)
	select {
	case <-d.exited:
	case <-time.After(15 * time.Second):
		t.Errorf("rdsd ignores %v for 15 s", sig)
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

func (d *daemon) tail() string {
	raw, _ := os.ReadFile(d.log)
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

func (d *daemon) bind(ctx context.Context, t *testing.T, a netip.Addr, port uint16, opts ...rdsd.BindOption) *rdsd.Socket {
	t.Helper()
	s, err := d.Bind(ctx, netip.AddrPortFrom(a, port), opts...)
	if err != nil {
		t.Fatalf("bind %v port %d: %v", a, port, err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// watch keeps the last frames of the wire, and what the peers look like, for
// the case that the test fails.
func watch(t *testing.T, l *lab, d *daemon) {
	t.Helper()
	c, err := StartCapture(l.ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		dir := os.Getenv("RDSD_INTEROP_DUMP") // asks for it in any case
		if !t.Failed() && dir == "" {
			return
		}
		if dir == "" {
			dir = os.TempDir()
		}
		path := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".pcap")
		if err := c.Save(path); err != nil {
			t.Error(err)
			return
		}
		t.Logf("the last %d frames: %s", captureFrames, path)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if peers, err := d.Admin().Peers(ctx, rdsd.PeerFilter{}); err == nil {
			t.Logf("peers: %+v", peers)
		}
		if counters, err := d.Admin().Counters(ctx, netip.Addr{}); err == nil {
			var moved []string
			for _, c := range counters {
				if c.Value != 0 {
					moved = append(moved, fmt.Sprintf("%s=%d", c.Name, c.Value))
				}
			}
			t.Logf("rdsd's counters: %s", strings.Join(moved, " "))
		}
		if counters, err := l.vm.Counters(ctx); err == nil {
			t.Logf("the kernel's counters: %v", counters)
		}
	})
}
