package kernelnbd

import (
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// TestExt4: a file system on each kind of volume, over one connection and
// several, under traffic, read again after a mount, and without fault.
func TestExt4(t *testing.T) {
	guest(t, func(t *testing.T) {
		const size = 48 << 20
		for name, v := range map[string]struct {
			dev   func(t *testing.T) blk.Device
			conns int
		}{
			"memory": {func(t *testing.T) blk.Device { return memory(t, blk.MemOptions{Size: size}) }, 3},
			"file":   {func(t *testing.T) blk.Device { return file(t, size, blk.FileOptions{LogicalBlock: 4096}) }, 1},
		} {
			t.Run(name, func(t *testing.T) {
				d := attach(t, v.dev(t), v.conns, nil)
				d.mkfs()
				dir, unmount := d.mount("discard")
				r := startTraffic(t, dir, 3, 700).wait()
				unmount()
				d.fsck()
				dir, unmount = d.mount("")
				r.verify(t, dir)
				unmount()
				if n := d.srv.Stats(); n.Failed != 0 || n.Requests < 1000 {
					t.Errorf("of the server: %+v", n)
				}
			})
		}
	})
}
