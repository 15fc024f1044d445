package vm

import (
	"flag"
	"fmt"
	"net/url"
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

// What -vm.soak does with a daemon.
var (
	rounds = flag.Int("vm.rounds", 20, "with -vm.soak: how often a path is disconnected, cut, and a daemon killed")
	long   = flag.Duration("vm.long", 30*time.Minute, "with -vm.soak: how long fio runs")
)

// judged is a process of rdsd in our namespace.
type judged struct {
	t       *testing.T
	program string
	dir     string
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

// newJudged starts a daemon at an address, and waits until it serves.
func newJudged(t *testing.T, l []link) *judged {
	t.Helper()
	d := &judged{t: t, program: program(t), dir: t.TempDir()}
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
[[peers]]
address = "10.9.0.0/16"
kernel = true
`, l[0].other, d.dir, d.dir)
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
	d.process = start(d.t, "ip", "netns", "exec", ours, d.program, "serve", "--config", filepath.Join(d.dir, "rdsd.toml"))
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
	return append([]string{d.program, "--socket", d.dir + "/api", "--timeout", "60s"}, args...)
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

// fioFor is fio for a while, which has to find no difference.
func fioFor(t *testing.T, disk string, d time.Duration) *process {
	t.Helper()
	return start(t, append(fioArgs(disk, 8), "--time_based", fmt.Sprintf("--runtime=%d", int(d.Seconds())))...)
}

// daemonLimit is for scenarios with all their rounds: a kernel that lost a path without a word
// takes 70 s to have it back.
func daemonLimit() time.Duration {
	if *soak {
		return *long + time.Duration(*rounds)*5*time.Minute
	}
	return 5 * time.Minute
}

// TestDaemonForKernel: the kernel's client on a volume that rdsd exports, with an ext4 and
// fio. With -vm.soak while its administrator takes each of two paths away and back, often, also
// by cutting the network, and for long; and the daemon is killed again and again.
func TestDaemonForKernel(t *testing.T) {
	withDaemon(t, daemonLimit(), Fresh(*soak), topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		load(t, "rnbd-client")
		d := newJudged(t, l)
		d.export("16M")
		disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
		d.up(2, time.Minute)
		fileSystem(t, disk)
		fio(t, disk, 1).wait(time.Minute)
		paths := kernelPaths(t, "judge")
		if *soak {
			daemonsPaths(t, d, l, disk, paths)
			daemonKilled(t, d, disk, paths)
		}
		kernelUnmap(t, disk)
	})
}

// daemonsPaths has the kernel's administrator take paths to a daemon away and bring them back,
// cuts the network, and has fio run for long.
func daemonsPaths(t *testing.T, d *judged, l []link, disk string, paths []string) {
	w := busy(t, disk)
	for i := range *rounds {
		p := paths[i%2]
		set(t, p+"/disconnect", "1")
		inState(t, p, "disconnected", time.Minute)
		w.goesOn(time.Minute)
		set(t, p+"/reconnect", "1")
		inState(t, p, "connected", time.Minute)
		w.goesOn(time.Minute)
	}
	for i := range *rounds {
		begun := time.Now()
		cut(t, l[i%2], true)
		d.up(1, 2*time.Minute)
		w.goesOn(2 * time.Minute)
		cut(t, l[i%2], false)
		for _, p := range paths {
			inState(t, p, "connected", 3*time.Minute)
		}
		w.goesOn(time.Minute)
		t.Logf("cut %d: both paths are back after %.0f s", i+1, time.Since(begun).Seconds())
	}
	w.stop(2 * time.Minute)
	fioFor(t, disk, *long).wait(*long + 5*time.Minute)
	t.Logf("fio: %v without a difference", *long)
	fileSystem(t, disk) // for the kills: the kernel has no path while its server is away, and nothing is written then
}

// daemonKilled kills a daemon again and again, whose exports the kernel has mapped.
func daemonKilled(t *testing.T, d *judged, disk string, paths []string) {
	for i := range *rounds {
		begun := time.Now()
		d.killed()
		for _, p := range paths {
			inState(t, p, "disconnected", 2*time.Minute)
		}
		for _, p := range paths {
			inState(t, p, "connected", 3*time.Minute)
		}
		until(t, "the disk is open", time.Minute, func() bool {
			return read(t, "/sys/block/"+filepath.Base(disk)+"/rnbd/state") == "open"
		})
		t.Logf("kill %d: back after %.0f s", i+1, time.Since(begun).Seconds())
		run(t, "e2fsck", "-f", "-n", disk)
		fio(t, disk, 2).wait(2 * time.Minute)
		fileSystem(t, disk)
	}
}

// TestDaemonOfKernel: rdsd maps a volume of the kernel's server by "ib:", which is written and
// compared. With -vm.soak it then has two paths, which its administrator takes away and brings
// back under fio on a device of nbd-client, and which are cut; and the daemon is killed again and
// again.
func TestDaemonOfKernel(t *testing.T) {
	withDaemon(t, daemonLimit(), Fresh(*soak), topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		store := memoryDisk(t, 16<<20)
		load(t, "rtrs-server", "sess_queue_depth=64")
		load(t, "rnbd-server")
		load(t, "nbd")
		d := newJudged(t, l)
		// One path, as most people will write it.
		uri := d.maps("volume", "map", fmt.Sprintf("ib:%v:dev/ram0", l[0].addr), "--id", "once")
		copied := t.TempDir() + "/copy"
		run(t, "sh", "-c", "head -c 4194304 /dev/urandom > "+copied)
		run(t, "nbdcopy", "--flush", copied, uri)
		run(t, "cmp", "-n", "4194304", copied, store)
		d.does("volume", "unmap", "once")
		if !*soak {
			return
		}

		args := []string{"volume", "map", fmt.Sprintf("ib:%v:dev/ram0", l[0].addr), "--persist", "--id", "kept", "--session", "judged"}
		for _, x := range l {
			args = append(args, "--path", fmt.Sprintf("ib:%v,%v", x.other, x.addr))
		}
		uri = d.maps(args...)
		d.up(2, time.Minute)
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		run(t, "nbd-client", "-unix", u.Query().Get("socket"), "/dev/nbd0", "-N", strings.TrimPrefix(u.Path, "/"))
		detach := func() { _, _ = try(t, "nbd-client", "-d", "/dev/nbd0") }
		t.Cleanup(detach)
		w := busy(t, "/dev/nbd0")
		for i := range *rounds {
			x := l[i%2]
			d.does("volume", "paths", "disconnect", "judged", fmt.Sprintf("%v,%v", x.other, x.addr), "--wait")
			w.goesOn(time.Minute)
			d.does("volume", "paths", "reconnect", "judged", fmt.Sprintf("%v,%v", x.other, x.addr), "--wait")
			w.goesOn(time.Minute)
		}
		for i := range *rounds {
			begun := time.Now()
			cut(t, l[i%2], true)
			d.up(1, 2*time.Minute)
			w.goesOn(3 * time.Minute)
			cut(t, l[i%2], false)
			d.up(2, 3*time.Minute)
			w.goesOn(time.Minute)
			t.Logf("cut %d: both paths are back after %.0f s", i+1, time.Since(begun).Seconds())
		}
		w.stop(2 * time.Minute)
		if *soak {
			fioFor(t, "/dev/nbd0", *long).wait(*long + 5*time.Minute)
			t.Logf("fio: %v without a difference", *long)
		}
		detach()
		for i := range *rounds {
			run(t, "nbdcopy", "--flush", copied, uri)
			begun := time.Now()
			d.killed()
			d.up(2, 4*time.Minute)
			t.Logf("kill %d: back after %.0f s", i+1, time.Since(begun).Seconds())
			run(t, "sh", "-c", "nbdcopy '"+uri+"' - | cmp -n 4194304 - "+copied)
		}
		d.does("volume", "unmap", "kept")
	})
}
