package client

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/shm"
)

// TestKeeperDoesNotWait: while the kernel takes its time to take pages of a client away, be its socket open or closed,
// those that lack pages are fed.
func TestKeeperDoesNotWait(t *testing.T) {
	for name, closed := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			n, cfg := startClients(t)
			addr := cfg.RDS.Addresses[0]
			c := clienttest.AttachRing(t, cfg, clienttest.OneDoorbell(addr, 0))
			var tag uint64
			c.Post(t, netip.AddrPortFrom(addr, uint16(c.Bound.GetLocal().GetPort())), 1, shm.MaxTrain, &tag)
			await.Until(t, time.Minute, "It has come.", func() bool { return c.Region.RecvTail().Load() == 1 })
			lacks := clienttest.AttachRing(t, cfg, clienttest.OneDoorbell(addr, 0))
			defer lacks.Close()
			await.Until(t, time.Minute, "Both are counted.", func() bool { return len(n.clients.ringSocks()) == 2 })
			var r *ringSock
			for _, x := range n.clients.ringSocks() {
				if x.sock.Addr().Port() != uint16(c.Bound.GetLocal().GetPort()) {
					r = x
				}
			}
			begun, ends := make(chan struct{}, 64), make(chan struct{})
			defer close(ends)
			step := func(what string) error {
				if what == "remove" {
					begun <- struct{}{}
					<-ends
				}
				return nil
			}
			if closed {
				c.C.Close()
				await.Until(t, time.Minute, "It waits for its client.", func() bool {
					p := &n.clients.pages
					p.mu.Lock()
					defer p.mu.Unlock()
					return len(p.closed) == 1
				})
				n.clients.fails.Store(&step)
				clienttest.CloseFDs([]int{c.Bell, c.Ear})
				unix.Munmap(c.Mem)
				c.Region.Close()
			} else {
				defer c.Close()
				n.clients.fails.Store(&step)
				c.Region.RecvHead().Store(1)
				var d shm.RecvDesc
				c.Region.GetRecv(0, &d)
				c.Region.PutRelease(0, d.Slot)
				c.Region.ReleaseTail().Store(1)
				other := n.deps.Memory.Account(quota.Holder{})
				defer other.Close()
				other.Grow(quota.Regions, n.deps.Memory.Limit()/2)
				defer other.Give(quota.Regions, n.deps.Memory.Limit()/2)
			}
			<-begun
			r.host.Lock()
			n.clients.pages.lack(r)
			r.host.Unlock()
			await.Until(t, time.Minute, "Who lacked pages is fed.", func() bool { return !n.clients.Lacks() })
		})
	}
}
