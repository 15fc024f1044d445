package rdstools

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/interop"
)

const (
	ourAddr    = "10.19.0.1"
	kernelAddr = "10.19.0.100"
)

// TestKernelPeer: both sides of rds-stress against the protocol's other end on
// a kernel's AF_RDS (testdata/rdsstress.py).
func TestKernelPeer(t *testing.T) {
	err := interop.Missing()
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatalf("a kernel cannot run here: %v", err)
	case err != nil:
		t.Skipf("a kernel cannot run here: %v", err)
	case testing.Short():
		t.Skip("a kernel takes its time; not with -short")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run, vm := kernelLab(ctx, t)
	script, err := filepath.Abs("testdata/rdsstress.py")
	if err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	var kernel, ours string
	var kernelErr, oursErr error
	wg.Go(func() {
		kernel, kernelErr = vm.Run(ctx, "/usr/bin/python3", "-I", "-S", "-B", script, kernelAddr,
			"passive", "5000", "active", "6000", ourAddr, "6")
	})
	wg.Go(func() {
		out, err := run("rds-stress", "-r", ourAddr, "-p", "6000")
		ours, oursErr = out, err
	})
	out, err := run("rds-stress", "-r", ourAddr, "-s", kernelAddr, "-p", "5000", "-t", "2", "-d", "3", "-q", "5000", "-v", "-T", "1", "--connect-retries", "20")
	wg.Wait()
	if err != nil || oursErr != nil || kernelErr != nil {
		t.Fatalf("our active side: %v\n%s\nour passive side: %v\n%s\nthe kernel's: %v\n%s", err, out, oursErr, ours, kernelErr, kernel)
	}
	for _, o := range []string{out, ours} {
		if !strings.Contains(o, "(average)") {
			t.Errorf("no summary:\n%s", o)
		}
	}
	for line := range strings.Lines(kernel) {
		var counts map[string]any
		if err := json.Unmarshal([]byte(line), &counts); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, k := range []string{"req_tx", "req_rx", "ack_tx", "ack_rx"} {
			if n, _ := counts[k].(float64); n < 100 {
				t.Errorf("the kernel's %s side: %s is %v", counts["side"], k, counts[k])
			}
		}
	}
	t.Logf("the kernel's sides:\n%s", kernel)
}

// kernelLab starts a kernel and, on the other end of its cable, a daemon; run
// runs our program there.
func kernelLab(ctx context.Context, t *testing.T) (run func(args ...string) (string, error), vm *interop.VM) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdsd-rdstools-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary := filepath.Join(dir, "rdsd")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/rdsd/rdsd/rdsd").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ns, err := interop.NewNetns(netip.MustParsePrefix(ourAddr + "/24"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	guest, err := filepath.Abs("../../../interop/guest")
	if err != nil {
		t.Fatal(err)
	}
	vm, err = interop.Boot(ctx, ns, interop.BootOptions{GuestDir: guest, Dir: dir, Addrs: []netip.Prefix{netip.MustParsePrefix(kernelAddr + "/24")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Kill() })
	config := filepath.Join(dir, "rdsd.toml")
	text := "version = 1\n[[peers]]\naddress = \"10.19.0.0/24\"\nkernel = true\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	daemon := ns.Command(binary, "serve", "--config", config, "--address", ourAddr, "--socket", socket, "--http", "", "--drain-timeout", "0s")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Process.Kill(); daemon.Wait() })
	run = func(args ...string) (string, error) {
		c := ns.Command(append([]string{binary}, args...)...)
		c.Env = append(os.Environ(), "RDSD_SOCKET="+socket)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for {
		out, err := run("status")
		if err == nil {
			return run, vm
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("the daemon does not start: %s", out)
		}
	}
}
