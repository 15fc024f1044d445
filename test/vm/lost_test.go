package vm

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/node/volume"
)

// What is lost without a word: networks that are cut, nodes that are killed. A kernel notices
// by its heartbeat, after 30 to 35 s, and tries again 31 s later; so each of these takes
// minutes and runs with -vm.soak alone. TestLost runs none otherwise, and does not skip.

var lost = []struct {
	name     string
	scenario func(t *testing.T, l []link)
}{
	{"the kernel client cut off", cutOfKernelsClient},
	{"our client cut off", cutToKernelsServer},
	{"our server killed", ourServerKilled},
	{"our client killed", ourClientKilled},
}

// TestLost runs what is in the table.
func TestLost(t *testing.T) {
	for _, c := range cases(nil, lost...) {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			between(t, 12*time.Minute, true, topology{mtu: 4200, links: 2}, c.scenario)
		})
	}
}

// cut has a link lose everything, or nothing any more.
func cut(t *testing.T, l link, is bool) {
	t.Helper()
	for _, end := range [][2]string{{"", l.dev}, {spaceOf(l.other), l.peer}} {
		if is {
			netem(t, end[0], end[1], "loss", "100%")
		} else {
			netem(t, end[0], end[1])
		}
	}
}

func cutOfKernelsClient(t *testing.T, l []link) {
	load(t, "rnbd-client")
	n := newNode(t, l[0].other, nil)
	n.export("disk", 16<<20)
	disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
	paths := kernelPaths(t, "judge")
	w := busy(t, disk)
	cut(t, l[0], true)
	begun := time.Now()
	gone := filepath.Join("/sys/class/rtrs-client/judge/paths", "ip:"+l[0].addr.String()+"@ip:"+l[0].other.String())
	inState(t, gone, "disconnected", time.Minute)
	t.Logf("the kernel has noticed after %.0f s", time.Since(begun).Seconds())
	w.goesOn(time.Minute)
	until(t, "we have noticed", time.Minute, func() bool {
		up := 0
		for _, p := range n.Paths() {
			if p.State == "connected" {
				up++
			}
		}
		return up == 1
	})
	cut(t, l[0], false)
	for _, p := range paths {
		inState(t, p, "connected", 3*time.Minute)
	}
	t.Logf("both paths are back after %.0f s", time.Since(begun).Seconds())
	w.goesOn(time.Minute)
	w.stop(2 * time.Minute)
	kernelUnmap(t, disk)
}

func cutToKernelsServer(t *testing.T, l []link) {
	memoryDisk(t, 16<<20)
	n, m := mapOfKernel(t, l)
	up := func(want int, limit time.Duration) {
		t.Helper()
		until(t, "paths are connected or lost", limit, func() bool {
			m, err := n.Mapping(m.ID)
			return err == nil && m.PathsUp == want
		})
	}
	up(2, time.Minute)
	w := busy(t, m.Device)
	begun := time.Now()
	cut(t, l[0], true)
	up(1, time.Minute)
	t.Logf("we have noticed after %.0f s", time.Since(begun).Seconds())
	// What was under way waits until the server has surely lost the path as well.
	w.goesOn(2 * time.Minute)
	t.Logf("all goes on after %.0f s", time.Since(begun).Seconds())
	cut(t, l[0], false)
	up(2, 3*time.Minute)
	w.goesOn(time.Minute)
	w.stop(2 * time.Minute)
	n.unmap(m)
}

func ourServerKilled(t *testing.T, l []link) {
	load(t, "rnbd-client")
	store := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(store, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := nodeSpec{Addr: l[0].other, State: t.TempDir(), Export: store}
	p := startNode(t, spec)
	disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
	fileSystem(t, disk)
	p.kill()
	startNode(t, spec)
	begun := time.Now()
	for _, path := range kernelPaths(t, "judge") {
		inState(t, path, "disconnected", time.Minute)
	}
	for _, path := range kernelPaths(t, "judge") {
		inState(t, path, "connected", 3*time.Minute)
	}
	until(t, "the disk is open", time.Minute, func() bool {
		return read(t, "/sys/block/"+filepath.Base(disk)+"/rnbd/state") == "open"
	})
	t.Logf("back after %.0f s", time.Since(begun).Seconds())
	run(t, "e2fsck", "-f", "-n", disk)
	fio(t, disk, 4).wait(time.Minute)
	kernelUnmap(t, disk)
}

func ourClientKilled(t *testing.T, l []link) {
	memoryDisk(t, 16<<20)
	load(t, "rtrs-server", "sess_queue_depth=64")
	load(t, "rnbd-server")
	load(t, "nbd")
	spec := nodeSpec{Addr: l[0].other, State: t.TempDir(), Map: &volume.MapSpec{
		Node: l[0].addr.String(), Paths: toKernel(l), Name: "dev/ram0", As: volume.AsNBD, Device: "/dev/nbd0", Persist: true,
	}}
	p := startNode(t, spec)
	w := busy(t, "/dev/nbd0")
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	begun := time.Now()
	second := startNode(t, spec)
	// The kernel's server refuses a session of the same name until it has lost the old one.
	w.goesOn(4 * time.Minute)
	t.Logf("goes on after %.0f s", time.Since(begun).Seconds())
	w.stop(2 * time.Minute)
	if t.Failed() {
		t.Log(second.said())
	}
	if err := nbd.Disconnect(0); err != nil {
		t.Error(err)
	}
}
