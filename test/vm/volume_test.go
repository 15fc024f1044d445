package vm

import (
	"fmt"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/volume"
)

// Volumes between the kernel and us, while nothing fails.

// TestVolumeForKernel: the kernel's rnbd-client maps a volume of ours, with keys that end with
// each request (flags 2) and with keys that stay (flags 0).
func TestVolumeForKernel(t *testing.T) {
	for _, c := range []struct {
		invalidate bool
		mtu        int
	}{{true, 1500}, {false, 4200}} {
		t.Run(fmt.Sprintf("invalidate=%v/mtu=%d", c.invalidate, c.mtu), func(t *testing.T) {
			between(t, 2*time.Minute, false, topology{mtu: c.mtu}, func(t *testing.T, l []link) {
				load(t, "rnbd-client")
				n := newNode(t, l[0].other, func(cfg *volume.Config) { cfg.AlwaysInvalidate = &c.invalidate })
				n.export("disk", 32<<20)
				disk := kernelMap(t, mapSpec{session: "judge", device: "disk", paths: []string{fmt.Sprintf("%v@%v", l[0].addr, l[0].other)}})
				fio(t, disk, 8).wait(time.Minute)
				fileSystem(t, disk)
				kernelUnmap(t, disk)
			})
		})
	}
}

// TestVolumeOfKernel: we map a volume of the kernel's rnbd-server, as a device of the kernel
// and as a socket.
func TestVolumeOfKernel(t *testing.T) {
	for _, c := range []struct {
		invalidate string
		mtu        int
	}{{"Y", 4200}, {"N", 1500}} {
		t.Run(fmt.Sprintf("invalidate=%s/mtu=%d", c.invalidate, c.mtu), func(t *testing.T) {
			between(t, 2*time.Minute, false, topology{mtu: c.mtu}, func(t *testing.T, l []link) {
				store := memoryDisk(t, 32<<20)
				load(t, "rtrs-server", "sess_queue_depth=64", "always_invalidate="+c.invalidate)
				load(t, "rnbd-server")
				load(t, "nbd")
				n := newNode(t, l[0].other, nil)
				m := n.mapped(volume.MapSpec{Node: l[0].addr.String(), Name: "dev/ram0", As: volume.AsNBD})
				fio(t, m.Device, 8).wait(time.Minute)
				fileSystem(t, m.Device)
				n.unmap(m)

				// What is there now is the same by the socket and at the server.
				m = n.mapped(volume.MapSpec{Node: l[0].addr.String(), Name: "dev/ram0"})
				copied := t.TempDir() + "/copy"
				run(t, "nbdcopy", m.URI, copied)
				run(t, "cmp", copied, store)
				n.unmap(m)
			})
		})
	}
}
