package kernelnbd

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// quick is the shortest timeout the kernel has: what was under way on a
// connection that was cut is sent again only then.
func quick(a *nbd.Attach) { a.Timeout = time.Second }

// TestCut: connections are cut under traffic, and the kernel is given new ones.
// The traffic sees nothing of it but time.
func TestCut(t *testing.T) {
	guest(t, func(t *testing.T) {
		for name, conns := range map[string]int{
			"the only one": 1,
			"one of two":   2,
		} {
			t.Run(name, func(t *testing.T) {
				d := attach(t, memory(t, blk.MemOptions{Size: 32 << 20}), conns, quick)
				d.mkfs("-b", "4096")
				dir, unmount := d.mount("discard")
				p := startTraffic(t, dir, 3, 0)
				d.interrupt(p, func() {
					d.cut()
					d.reconnect()
				})
				r := p.wait()
				unmount()
				d.fsck()
				dir, unmount = d.mount("")
				r.verify(t, dir)
				unmount()
			})
		}
	})
}
