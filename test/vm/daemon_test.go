package vm

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The daemon itself, told by a configuration file and by its commands as its administrator
// would, and the kernel.

// judged is a process of rdsd in our namespace.
type judged struct {
	t       *testing.T
	program string
	dir     string
	space   string // the namespace it is in
	process *process
}

// program is where rdsd lies, for the host and the guest alike.
func program(t *testing.T) string {
	t.Helper()
	dir, err := cache()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "rdsd")
}

var (
	buildOnce sync.Once
	buildErr  error
)

// built builds rdsd at a path, once in the life of this process.
func built(at string) error {
	buildOnce.Do(func() {
		next := at + ".next" // a guest that runs may have the one before in its hands
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", next, "github.com/rdsd/rdsd/rdsd")
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("go build: %w\n%s", err, out)
			return
		}
		buildErr = os.Rename(next, at)
	})
	return buildErr
}

// withDaemon is between for scenarios that start rdsd: the host builds it.
func withDaemon(t *testing.T, limit time.Duration, fresh Fresh, top topology, scenario func(t *testing.T, l []link)) {
	t.Helper()
	if !InGuest() {
		needGuest(t)
		if err := built(program(t)); err != nil {
			t.Fatal(err)
		}
	}
	between(t, limit, fresh, top, scenario)
}

// newJudged starts a daemon at an address, and waits until it serves. more is what its
// configuration has of volumes besides.
func newJudged(t *testing.T, l []link, more ...string) *judged {
	t.Helper()
	d := &judged{t: t, program: program(t), dir: t.TempDir(), space: spaceOf(l[0].other)}
	text := fmt.Sprintf(`version = 1
[rds]
addresses = ["%v"]
[api]
socket = "%s/api"
[http]
listen = ""
[volumes]
rdma = "soft"
listen = "always"
name = "judged"
state_dir = "%s"
queue_depth = 64
%s
[[peers]]
address = "10.0.0.0/8"
kernel = true
`, l[0].other, d.dir, d.dir, strings.Join(more, "\n"))
	if err := os.WriteFile(filepath.Join(d.dir, "rdsd.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := try(t, d.command("volume", "paths")...)
			t.Logf("%s\n%s", lastLines([]byte(d.process.said()), 40), out)
		}
	})
	return d
}

func (d *judged) start() {
	d.t.Helper()
	// Not by ip-netns: in the mount namespace that it makes, what others have mounted would stay mounted.
	d.process = start(d.t, "nsenter", "--net=/run/netns/"+d.space, d.program, "serve", "--config", filepath.Join(d.dir, "rdsd.toml"))
	until(d.t, "the daemon serves", time.Minute, func() bool {
		select {
		case <-d.process.done:
			d.t.Fatalf("the daemon has ended: %v\n%s", d.process.err, d.process.said())
		default:
		}
		_, err := try(d.t, d.command("status")...)
		return err == nil
	})
}

// killed ends the daemon as a signal does that it cannot see, and starts it again.
func (d *judged) killed() {
	d.t.Helper()
	_ = syscall.Kill(-d.process.cmd.Process.Pid, syscall.SIGKILL)
	<-d.process.done
	d.start()
}

func (d *judged) command(args ...string) []string {
	return append([]string{d.program, "--socket", d.dir + "/api", "--timeout", longer(time.Minute).String()}, args...)
}

// does runs a command of rdsd.
func (d *judged) does(args ...string) string {
	d.t.Helper()
	return strings.TrimSpace(run(d.t, d.command(args...)...))
}

// maps is does of a mapping, and returns its URI.
func (d *judged) maps(args ...string) string {
	d.t.Helper()
	out := d.does(args...)
	_, uri, ok := strings.Cut(out, "nbd+unix://")
	if !ok {
		d.t.Fatalf("no URI: %s", out)
	}
	return "nbd+unix://" + strings.Fields(uri)[0]
}

// up waits until so many paths are connected.
func (d *judged) up(n int, limit time.Duration) {
	d.t.Helper()
	until(d.t, fmt.Sprintf("%d paths are connected", n), limit, func() bool {
		out, err := try(d.t, d.command("volume", "paths", "--output", "tsv")...)
		return err == nil && strings.Count(out, "\tconnected") == n
	})
}

// export makes and exports a file that comes back with the daemon.
func (d *judged) export(size string) {
	d.t.Helper()
	d.does("volume", "export", "disk", filepath.Join(d.dir, "store"), "--create", "--size", size, "--persist")
}

// TestDaemonForKernel: the kernel's client on a volume that rdsd exports, with an ext4 and fio.
func TestDaemonForKernel(t *testing.T) {
	withDaemon(t, 5*time.Minute, false, topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		load(t, "rnbd-client")
		d := newJudged(t, l)
		d.export("16M")
		disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
		d.up(2, time.Minute)
		fileSystem(t, disk)
		fio(t, disk, 1).wait(time.Minute)
		kernelUnmap(t, disk)
	})
}

// TestDaemonOfKernel: rdsd maps a volume of the kernel's server by "ib:", over one path, as most
// people will write it; it is written and compared.
func TestDaemonOfKernel(t *testing.T) {
	withDaemon(t, 5*time.Minute, false, topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		store := memoryDisk(t, 16<<20)
		load(t, "rtrs-server", "sess_queue_depth=64")
		load(t, "rnbd-server")
		d := newJudged(t, l)
		uri := d.maps("volume", "map", fmt.Sprintf("ib:%v:dev/ram0", l[0].addr), "--id", "once")
		copied := randomFile(t, 4<<20)
		run(t, "nbdcopy", "--flush", copied, uri)
		run(t, "cmp", "-n", "4194304", copied, store)
		d.does("volume", "unmap", "once")
	})
}

// randomFile is a file of so many bytes.
func randomFile(t *testing.T, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	at := filepath.Join(t.TempDir(), "random")
	if err := os.WriteFile(at, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}
