package vm

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/node/volume"
)

// Everything that may happen to volumes between the kernel and us, again and again. Most of the
// time of such a round is a kernel's waiting: 30 to 35 s until it notices silence, 31 s until it
// tries again. So six lanes wait side by side in one guest, each with a namespace, two networks
// and two devices of the kernel of its own.

// What -vm.soak does in each lane.
var (
	rounds = flag.Int("vm.rounds", 20, "with -vm.soak: how often a path is disconnected, cut, and a daemon killed")
	only   = flag.String("vm.lanes", "", "with -vm.soak: the lanes of TestSoak whose names have this in them")
	long   = flag.Duration("vm.long", 30*time.Minute, "with -vm.soak: how long fio runs at least")
)

// lane is one of those that run at a time.
type lane struct {
	n    int
	l    []link
	keys string // always_invalidate, of the kernel's server and of our daemon: Y or N
}

func (x lane) name() string { return fmt.Sprint("judged", x.n) }

// store is what the kernel's server has for this lane.
func (x lane) store() string { return fmt.Sprintf("ram%d", x.n) }

func (x lane) invalidate() string {
	return fmt.Sprintf("always_invalidate = %v", x.keys == "Y")
}

var lanes = []struct {
	name     string
	scenario func(t *testing.T, x lane)
}{
	{"kernels-client-paths", soakKernelsPaths},
	{"kernels-client-kills", soakKernelsKills},
	{"socket-paths", soakSocketPaths},
	{"socket-kills", soakSocketKills},
	{"nbd-paths", soakDevicePaths},
	{"nbd-kills", soakDeviceKills},
}

// TestSoak (-vm.soak alone) runs all lanes, and then takes the modules of either side out and
// puts them in again; with keys that end with each request, and with keys that stay.
func TestSoak(t *testing.T) {
	for _, keys := range cases(nil, "Y", "N") {
		t.Run("keys-"+keys, func(t *testing.T) { soakAll(t, keys) })
	}
}

func soakAll(t *testing.T, keys string) {
	if !InGuest() {
		needGuest(t)
		if err := built(program(t)); err != nil {
			t.Fatal(err)
		}
		shared.grow("2G")
	}
	In(t, *long+time.Duration(*rounds)*10*time.Minute, Fresh(true), func(t *testing.T) {
		var all []lane
		for i := range lanes {
			top := topology{mtu: 4200, links: 2, lane: i}
			all = append(all, lane{i, top.all(), keys})
			top.make(t, all[i].l)
		}
		load(t, "brd", fmt.Sprintf("rd_nr=%d", len(lanes)), fmt.Sprintf("rd_size=%d", 16<<10))
		server := []string{"sess_queue_depth=64", "always_invalidate=" + keys}
		load(t, "rtrs-server", server...)
		load(t, "rnbd-server")
		load(t, "rnbd-client")
		load(t, "nbd")
		var wg sync.WaitGroup
		for i, c := range lanes {
			if !strings.Contains(c.name, *only) {
				continue
			}
			wg.Go(func() {
				t.Run(c.name, func(t *testing.T) {
					c.scenario(t, all[i])
					note(t, "done")
				})
			})
		}
		wg.Wait()
		t.Run("client-reload", func(t *testing.T) { reloadClient(t, all[0]) })
		t.Run("server-reload", func(t *testing.T) { reloadServer(t, all[4], server) })
	})
}

// grow has guests from now on more memory.
func (g *guest) grow(memory string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.options.Memory != memory {
		g.endLocked()
		g.options.Memory = memory
	}
}

var noting sync.Mutex

// note says what a lane has done, in the test's output and, at once, in the host's out/soak.log.
func note(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Log(text)
	noting.Lock()
	defer noting.Unlock()
	f, err := os.OpenFile("/run/out/soak.log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "%s %s: %s\n", time.Now().Format(time.TimeOnly), filepath.Base(t.Name()), text)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// steady is traffic that leaves the processor to the other lanes for a while.
func steady(t *testing.T, disk string) *traffic {
	t.Helper()
	return busy(t, disk, "--thinktime=20000", "--thinktime_blocks=16")
}

// lasts has traffic run for as long as -vm.long says, and ends it.
func (w *traffic) lasts() {
	w.t.Helper()
	for time.Since(w.begun) < *long {
		w.goesOn(2 * time.Minute)
		time.Sleep(time.Second)
	}
	done := w.completed()
	w.stop(2 * time.Minute)
	note(w.t, "fio: %.0f s without a difference, %d requests", time.Since(w.begun).Seconds(), done)
}

// cuts cuts the networks in turn, and waits for what has to come of it.
func cuts(t *testing.T, x lane, w *traffic, one, both func()) {
	for i := range *rounds {
		begun := time.Now()
		cut(t, x.l[i%2], true)
		one()
		noticed := time.Since(begun)
		w.goesOn(3 * time.Minute)
		on := time.Since(begun)
		cut(t, x.l[i%2], false)
		both()
		w.goesOn(time.Minute)
		note(t, "cut %d: noticed after %.0f s, the traffic goes on after %.0f s, both paths are back after %.0f s", i+1, noticed.Seconds(), on.Seconds(), time.Since(begun).Seconds())
	}
}

// look writes down, where a lane has failed, what both ends know of it and what is on the wire, into the
// host's out/look-LANE: what stands still can be asked only while it stands. A queue pair of rxe
// whose sq-psn is behind what it has sent (-vm.capture) has gone back and stopped.
func (x lane) look(t *testing.T, d *judged, disk string) {
	if !t.Failed() {
		return
	}
	commands := [][]string{
		d.command("volume", "paths", "--output", "json"), d.command("volume", "sessions", "--output", "json"),
		{"sh", "-c", "cd /sys/class/rtrs-client/" + x.name() + " && grep -r . . 2>/dev/null"},
		{"sh", "-c", "cd /sys/block/" + filepath.Base(disk) + " && grep . inflight stat rnbd/* 2>/dev/null; cd /sys/kernel/debug/block/" + filepath.Base(disk) + " && grep -r . . 2>/dev/null | head -400"},
		{"rdma", "resource", "show", "qp"},
	}
	for _, l := range x.l {
		commands = append(commands, []string{"sh", "-c", "grep . /sys/class/infiniband/rxe_" + l.dev + "/ports/1/hw_counters/*"},
			[]string{"timeout", "15", "tcpdump", "-n", "-x", "-c", "200", "-i", l.dev})
	}
	commands = append(commands, commands[0])
	var b strings.Builder
	for _, argv := range commands {
		out, err := try(t, argv...)
		fmt.Fprintf(&b, "--- %s: %v\n%s\n", strings.Join(argv, " "), err, out)
	}
	if err := os.WriteFile("/run/out/look-"+x.name(), []byte(b.String()), 0o644); err != nil {
		t.Error(err)
	}
	note(t, "has failed: look-%s", x.name())
}

// soakKernelsPaths has the administrator of the kernel's client on a volume of the program's
// disconnect, reconnect, remove and add paths, and cuts networks, under fio.
func soakKernelsPaths(t *testing.T, x lane) {
	d := newJudged(t, x.l, x.invalidate())
	d.export("16M")
	at := "/sys/class/rtrs-client/" + x.name()
	disk := kernelMap(t, mapSpec{session: x.name(), device: "disk", paths: kernelTo(x.l)})
	d.up(2, time.Minute)
	fileSystem(t, disk)
	paths := kernelPaths(t, x.name())
	defer x.look(t, d, disk)
	w := steady(t, disk)
	for i := range *rounds {
		begun := time.Now()
		p := paths[i%2]
		set(t, p+"/disconnect", "1")
		inState(t, p, "disconnected", time.Minute)
		w.goesOn(time.Minute)
		set(t, p+"/reconnect", "1")
		inState(t, p, "connected", time.Minute)
		w.goesOn(time.Minute)
		note(t, "disconnected and reconnected %d: %.0f s", i+1, time.Since(begun).Seconds())
		if i%4 == 3 {
			set(t, p+"/remove_path", "1")
			until(t, "the path is gone", time.Minute, func() bool { _, err := os.Stat(p); return err != nil })
			w.goesOn(time.Minute)
			set(t, at+"/add_path", "ip:"+pathName(p))
			inState(t, p, "connected", time.Minute)
			w.goesOn(time.Minute)
			note(t, "removed and added")
		}
	}
	cuts(t, x, w, func() { d.up(1, 2*time.Minute) }, func() {
		for _, p := range paths {
			inState(t, p, "connected", 3*time.Minute)
		}
	})
	w.lasts()
	fileSystem(t, disk)
	kernelUnmap(t, disk)
}

// soakKernelsKills kills the program whose volume the kernel's client has mapped. Nothing is
// written while it is away, for the kernel has no path then.
func soakKernelsKills(t *testing.T, x lane) {
	d := newJudged(t, x.l, x.invalidate())
	d.export("16M")
	disk := kernelMap(t, mapSpec{session: x.name(), device: "disk", paths: kernelTo(x.l)})
	d.up(2, time.Minute)
	fileSystem(t, disk)
	paths := kernelPaths(t, x.name())
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
		back := time.Since(begun)
		run(t, "e2fsck", "-f", "-n", disk)
		fio(t, disk, 2).wait(2 * time.Minute)
		fileSystem(t, disk)
		note(t, "kill %d: back after %.0f s", i+1, back.Seconds())
	}
	kernelUnmap(t, disk)
}

// mapsStore has a program map this lane's store of the kernel over both networks.
func (x lane) mapsStore(d *judged) (uri string) {
	args := []string{"volume", "map", fmt.Sprintf("ib:%v:dev/%s", x.l[0].addr, x.store()), "--persist", "--id", "kept", "--session", x.name()}
	for _, l := range x.l {
		args = append(args, "--path", fmt.Sprintf("ib:%v,%v", l.other, l.addr))
	}
	uri = d.maps(args...)
	d.up(2, time.Minute)
	return uri
}

// soakSocketPaths has the program map a volume of the kernel's as a socket, to which nbd-client is
// connected; its administrator and cuts take paths away, under fio.
func soakSocketPaths(t *testing.T, x lane) {
	d := newJudged(t, x.l)
	uri := x.mapsStore(d)
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("/dev/nbd%d", x.n)
	run(t, "nbd-client", "-unix", u.Query().Get("socket"), device, "-N", strings.TrimPrefix(u.Path, "/"))
	detach := func() { _, _ = try(t, "nbd-client", "-d", device) }
	t.Cleanup(detach)
	w := steady(t, device)
	for i := range *rounds {
		begun := time.Now()
		l := x.l[i%2]
		path := fmt.Sprintf("%v,%v", l.other, l.addr)
		d.does("volume", "paths", "disconnect", x.name(), path, "--wait")
		w.goesOn(time.Minute)
		d.does("volume", "paths", "reconnect", x.name(), path, "--wait")
		w.goesOn(time.Minute)
		note(t, "disconnected and reconnected %d: %.0f s", i+1, time.Since(begun).Seconds())
		if i%4 == 3 {
			d.does("volume", "paths", "remove", x.name(), path)
			d.up(1, time.Minute)
			w.goesOn(time.Minute)
			d.does("volume", "paths", "add", x.name(), "ib:"+path, "--wait")
			d.up(2, time.Minute)
			w.goesOn(time.Minute)
			note(t, "removed and added")
		}
	}
	cuts(t, x, w, func() { d.up(1, 2*time.Minute) }, func() { d.up(2, 3*time.Minute) })
	w.lasts()
	detach()
	d.does("volume", "unmap", "kept")
}

// soakSocketKills kills the program that has a volume of the kernel's mapped as a socket.
func soakSocketKills(t *testing.T, x lane) {
	d := newJudged(t, x.l)
	uri := x.mapsStore(d)
	for i := range *rounds {
		written := randomFile(t, 4<<20)
		run(t, "nbdcopy", "--flush", written, uri)
		begun := time.Now()
		d.killed()
		d.up(2, 4*time.Minute)
		back := time.Since(begun)
		run(t, "sh", "-c", "nbdcopy '"+uri+"' - | cmp -n 4194304 - "+written)
		run(t, "cmp", "-n", "4194304", written, "/dev/"+x.store())
		start(t, "fio", "--name=verify", "--ioengine=nbd", "--uri="+uri, "--iodepth=16", "--rw=randrw", "--bsrange=4k-64k", "--size=2m",
			"--verify=crc32c", "--verify_fatal=1", "--verify_backlog=64", "--thread", "--minimal").wait(2 * time.Minute)
		note(t, "kill %d: back after %.0f s", i+1, back.Seconds())
	}
	d.does("volume", "unmap", "kept")
}

// mapsDevice has a node in this process map this lane's store of the kernel as a device.
func (x lane) mapsDevice(t *testing.T) (*node, volume.MappingInfo) {
	t.Helper()
	n := newNode(t, x.l[0].other, func(c *volume.Config) { c.Name = x.name() })
	m := n.mapped(x.device())
	n.has(m, 2, time.Minute)
	return n, m
}

func (x lane) device() volume.MapSpec {
	return volume.MapSpec{Node: x.l[0].addr.String(), Paths: toKernel(x.l), Name: "dev/" + x.store(), As: volume.AsNBD,
		Device: fmt.Sprintf("/dev/nbd%d", x.n), Persist: true}
}

// has waits until so many paths of a mapping are connected.
func (n *node) has(m volume.MappingInfo, paths int, limit time.Duration) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("%d paths are connected", paths), limit, func() bool {
		m, err := n.Mapping(m.ID)
		return err == nil && m.PathsUp == paths
	})
}

// soakDevicePaths has a node map a volume of the kernel's as a device; its administrator and cuts
// take paths away, under fio.
func soakDevicePaths(t *testing.T, x lane) {
	n, m := x.mapsDevice(t)
	w := steady(t, m.Device)
	does := func(what string, f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for i := range *rounds {
		begun := time.Now()
		p := toKernel(x.l)[i%2]
		does("disconnect", func() error { return n.DisconnectPath(n.ctx(), m.Session, p) })
		n.has(m, 1, time.Minute)
		w.goesOn(time.Minute)
		does("reconnect", func() error { return n.ReconnectPath(n.ctx(), m.Session, p) })
		n.has(m, 2, time.Minute)
		w.goesOn(time.Minute)
		note(t, "disconnected and reconnected %d: %.0f s", i+1, time.Since(begun).Seconds())
		if i%4 == 3 {
			does("remove", func() error { return n.RemovePath(n.ctx(), m.Session, p) })
			w.goesOn(time.Minute)
			does("add", func() error { _, err := n.AddPath(n.ctx(), m.Session, p); return err })
			n.has(m, 2, time.Minute)
			w.goesOn(time.Minute)
			note(t, "removed and added")
		}
	}
	cuts(t, x, w, func() { n.has(m, 1, time.Minute) }, func() { n.has(m, 2, 3*time.Minute) })
	w.lasts()
	n.unmap(m)
}

// soakDeviceKills kills a node, in a process of its own, that has a volume of the kernel's mapped
// as a device, under fio. The kernel's server refuses a session of the same name until it has
// lost the old one.
func soakDeviceKills(t *testing.T, x lane) {
	s := x.device()
	spec := nodeSpec{Addr: x.l[0].other, Name: x.name(), State: t.TempDir(), Map: &s}
	p := startNode(t, spec)
	w := steady(t, s.Device)
	for i := range *rounds {
		begun := time.Now()
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		p = startNode(t, spec)
		w.goesOn(4 * time.Minute)
		note(t, "kill %d: the traffic goes on after %.0f s", i+1, time.Since(begun).Seconds())
	}
	w.lasts()
	if t.Failed() {
		t.Log(p.said())
	}
	if err := nbd.Disconnect(x.n); err != nil {
		t.Error(err)
	}
}

// reloads is how often modules are taken out and put in again.
func reloads() int { return max(*rounds/5, 1) }

// reloadClient has the kernel's client taken out and put in again, which finds what it has written.
func reloadClient(t *testing.T, x lane) {
	d := newJudged(t, x.l, x.invalidate())
	d.export("16M")
	for i := range reloads() {
		disk := kernelMap(t, mapSpec{session: x.name(), device: "disk", paths: kernelTo(x.l)})
		d.up(2, time.Minute)
		if i > 0 {
			run(t, "e2fsck", "-f", "-n", disk)
		}
		fio(t, disk, 1).wait(time.Minute)
		fileSystem(t, disk)
		kernelUnmap(t, disk)
		unload(t, "rnbd-client")
		run(t, "modprobe", "rnbd-client")
		note(t, "reloaded %d", i+1)
	}
}

// reloadServer has the kernel's server taken out and put in again under our client's traffic.
func reloadServer(t *testing.T, x lane, server []string) {
	n, m := x.mapsDevice(t)
	w := steady(t, m.Device)
	for i := range reloads() {
		begun := time.Now()
		unload(t, "rnbd-server")
		unload(t, "rtrs-server")
		n.has(m, 0, time.Minute)
		run(t, append([]string{"modprobe", "rtrs-server"}, server...)...)
		run(t, "modprobe", "rnbd-server")
		n.has(m, 2, 3*time.Minute)
		w.goesOn(2 * time.Minute)
		note(t, "reloaded %d: %.0f s", i+1, time.Since(begun).Seconds())
	}
	w.stop(2 * time.Minute)
	n.unmap(m)
}
