package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/volume"
)

// Volumes between the kernel and us while paths are lost. All of it under fio, which must find
// no difference, and no I/O may fail.

// kernelTo lists the paths from the kernel to us.
func kernelTo(l []link) (paths []string) {
	for _, l := range l {
		paths = append(paths, fmt.Sprintf("%v@%v", l.addr, l.other))
	}
	return paths
}

// toKernel lists the paths from us to the kernel.
func toKernel(l []link) (paths []volume.PathSpec) {
	for _, l := range l {
		paths = append(paths, volume.PathSpec{Src: l.other.String(), Dst: l.addr.String()})
	}
	return paths
}

// mapOfKernel has the kernel serve /dev/ram0, which is there, and us map it as a device.
func mapOfKernel(t *testing.T, l []link) (*node, volume.MappingInfo) {
	t.Helper()
	load(t, "rtrs-server", "sess_queue_depth=64")
	load(t, "rnbd-server")
	load(t, "nbd")
	n := newNode(t, l[0].other, nil)
	return n, n.mapped(volume.MapSpec{Node: l[0].addr.String(), Paths: toKernel(l), Name: "dev/ram0", As: volume.AsNBD})
}

// TestPathsOfKernelsClient: the administrator of the kernel's client disconnects, reconnects,
// removes and adds paths to us while there is traffic.
func TestPathsOfKernelsClient(t *testing.T) {
	between(t, 4*time.Minute, false, topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		load(t, "rnbd-client")
		n := newNode(t, l[0].other, nil)
		n.export("disk", 16<<20)
		disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: kernelTo(l)})
		paths := kernelPaths(t, "judge")
		if len(paths) != 2 {
			t.Fatalf("paths: %v", paths)
		}
		w := busy(t, disk)
		for _, p := range paths {
			set(t, p+"/disconnect", "1")
			inState(t, p, "disconnected", 10*time.Second)
			w.goesOn(30 * time.Second)
			set(t, p+"/reconnect", "1")
			inState(t, p, "connected", 20*time.Second)
			w.goesOn(30 * time.Second)
		}
		set(t, paths[0]+"/remove_path", "1")
		until(t, "the path is gone", 20*time.Second, func() bool { _, err := os.Stat(paths[0]); return err != nil })
		w.goesOn(30 * time.Second)
		set(t, "/sys/class/rtrs-client/judge/add_path", "ip:"+pathName(paths[0]))
		inState(t, paths[0], "connected", 20*time.Second)
		w.goesOn(30 * time.Second)
		w.stop(time.Minute)
		kernelUnmap(t, disk)
	})
}

// pathName is a path as the kernel is told of it: source and destination.
func pathName(path string) string {
	return filepath.Base(path)[len("ip:"):]
}

// TestPathsToKernelsServer: our administrator does the same with paths to the kernel, and the
// server's modules are taken out and put in again.
func TestPathsToKernelsServer(t *testing.T) {
	between(t, 5*time.Minute, false, topology{mtu: 4200, links: 2}, func(t *testing.T, l []link) {
		memoryDisk(t, 16<<20)
		n, m := mapOfKernel(t, l)
		up := func(want int) {
			t.Helper()
			until(t, fmt.Sprintf("%d paths are connected", want), time.Minute, func() bool {
				m, err := n.Mapping(m.ID)
				return err == nil && m.PathsUp == want
			})
		}
		up(2)
		w := busy(t, m.Device)
		does := func(what string, f func() error) {
			t.Helper()
			if err := f(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		for _, p := range toKernel(l) {
			does("disconnect", func() error { return n.DisconnectPath(n.ctx(), m.Session, p) })
			up(1)
			w.goesOn(time.Minute)
			does("reconnect", func() error { return n.ReconnectPath(n.ctx(), m.Session, p) })
			up(2)
		}
		first := toKernel(l)[0]
		does("remove", func() error { return n.RemovePath(n.ctx(), m.Session, first) })
		w.goesOn(time.Minute)
		does("add", func() error { _, err := n.AddPath(n.ctx(), m.Session, first); return err })
		up(2)
		w.goesOn(time.Minute)

		unload(t, "rnbd-server")
		unload(t, "rtrs-server")
		up(0)
		run(t, "modprobe", "rtrs-server", "sess_queue_depth=64")
		run(t, "modprobe", "rnbd-server")
		up(2)
		w.goesOn(time.Minute)
		w.stop(time.Minute)
		n.unmap(m)
	})
}
