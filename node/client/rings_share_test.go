package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/shm"
)

// TestCrowd: many sockets of a user that all have something to send have no more of it
// taken in a turn than one would, all of it is taken, and what Flush waits for as well.
func TestCrowd(t *testing.T) {
	n, cfg := startClients(t)
	w := n.hosts.NextWorker()
	const sockets, each, bytes = 24, 12, 64 << 10
	var crowd []*clienttest.RingClient
	for range sockets {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		defer r.Close()
		crowd = append(crowd, r)
		clear(r.Region.SendArena()[:bytes])
	}
	for _, flush := range []bool{false, true} {
		gate, held := make(chan struct{}), make(chan struct{})
		w.Do(func() { close(held); <-gate })
		<-held
		before := n.deps.Count.RingPosts.Load()
		turns, _, _, _ := w.Stats()
		for i, r := range crowd {
			to := crowd[(i+1)%sockets].Bound.GetLocal().GetPort()
			r.Region.PutFlow(0, &shm.FlowEntry{Dst: netip.AddrPortFrom(cfg.RDS.Addresses[0], uint16(to)), Gen: 1})
			tail := r.Region.SendTail().Load()
			for k := range uint64(each) {
				r.Region.PutSend(tail+k, shm.MakeWord(shm.KindEach, bytes, 1), &shm.SendDesc{Tag: tail + k, Gen: 1, Cookie: uint32(tail + k)})
			}
			r.Region.SendTail().Store(tail + each)
			shm.Ring(r.Bell)
			if flush {
				r.Ask(t, clienttest.FlushOf(1, 0))
			}
		}
		close(gate)
		await.Until(t, 10*time.Second, "everything is taken", func() bool {
			return n.deps.Count.RingPosts.Load()-before == sockets*each
		})
		now, _, _, _ := w.Stats()
		const most = 1<<20/bytes + 1 // what is copied of a user in a turn
		if took := now - turns; took < sockets*each/most {
			t.Errorf("flush %v: %d Descriptors of %d bytes were taken in %d turns, a turn takes %d", flush, sockets*each, bytes, took, most)
		}
		for _, r := range crowd {
			if flush {
				if m := r.Answer(t); !m.HasFlushResult() {
					t.Errorf("%v", m)
				}
			}
			r.Region.EventHead().Store(r.Region.EventTail().Load())
			head, tail := r.Region.RecvHead().Load(), r.Region.RecvTail().Load()
			at := r.Region.ReleaseTail().Load()
			for ; head != tail; head++ {
				var d shm.RecvDesc
				r.Region.GetRecv(head, &d)
				r.Region.PutRelease(at, d.Slot)
				at++
			}
			r.Region.RecvHead().Store(tail)
			r.Region.ReleaseTail().Store(at)
			shm.Ring(r.Bell)
		}
	}
}
