package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
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

// TestCrowdGivesBack: many sockets of a user whose clients give much back at once have no more of it
// taken in a turn than is their user's, and all of it is taken, be they rung for or collected.
func TestCrowdGivesBack(t *testing.T) {
	n, cfg := startClientsWith(t, func(c *config.Config) { c.Reactor.Threads = 1 })
	w := n.hosts.NextWorker()
	const sockets, each = 16, 1024
	var crowd []*clienttest.RingClient
	for range sockets {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		defer r.Close()
		crowd = append(crowd, r)
		clear(r.Region.SendArena()[:2])
		r.Region.PutFlow(0, &shm.FlowEntry{Dst: netip.AddrPortFrom(cfg.RDS.Addresses[0], uint16(r.Bound.GetLocal().GetPort())), Gen: 1})
	}
	for round, collected := range []bool{false, true} {
		tail := uint64(round+1) * each
		for _, r := range crowd {
			for k := tail - each; k != tail; k++ { // of two lengths in turn: each has a slot of its own
				r.Region.PutSend(k, shm.MakeWord(shm.KindEach, int(1+k%2), 1), &shm.SendDesc{Tag: k, Gen: 1, Cookie: uint32(k)})
			}
			r.Region.SendTail().Store(tail)
			shm.Ring(r.Bell)
			await.Until(t, 10*time.Second, "everything has come, and the daemon sleeps", func() bool {
				return r.Region.RecvTail().Load() == tail && r.Region.DaemonSleeps().Load() != 0
			})
			r.Region.EventHead().Store(r.Region.EventTail().Load())
		}
		gate, held, taken := make(chan struct{}), make(chan struct{}), make(chan struct{})
		last, most := uint64(sockets)*(tail-each), uint64(0)
		var look func()
		look = func() { // in each turn, before anything is taken in it
			total := uint64(0)
			for _, r := range crowd {
				total += r.Region.ReleaseHead().Load()
			}
			if last, most = total, max(most, total-last); total == sockets*tail {
				close(taken)
				return
			}
			w.Do(look)
		}
		w.Do(func() { close(held); <-gate })
		<-held
		w.Do(look)
		for _, r := range crowd {
			for k := tail - each; k != tail; k++ {
				var d shm.RecvDesc
				r.Region.GetRecv(k, &d)
				r.Region.PutRelease(k, d.Slot)
			}
			r.Region.RecvHead().Store(tail)
			r.Region.ReleaseTail().Store(tail)
			if !collected {
				shm.Ring(r.Bell)
			}
		}
		if collected {
			n.hosts.Collect()
		}
		close(gate)
		select {
		case <-taken:
		case <-time.After(10 * time.Second):
			t.Fatalf("collected %v: not everything is taken", collected)
		}
		const share, step = 4096, 1024 // who has something left takes a step
		if most >= share+step {
			t.Errorf("collected %v: %d slots were taken back in one turn, a turn takes %d", collected, most, share)
		}
	}
}

// TestReadEventsAreShared: what a client has read makes room for events that wait, which is work for
// each of them, and is taken out of the same share.
func TestReadEventsAreShared(t *testing.T) {
	n, cfg := startClients(t)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	var tag uint64
	const waits = 500
	events := int(c.Region.Events)
	for int(tag) < events+waits { // refused: an event each
		c.Post(t, netip.AddrPortFrom(cfg.RDS.Addresses[0], 1), 1, 1, &tag)
	}
	r := n.clients.ringSocks()[0]
	await.Until(t, 5*time.Second, "everything is taken, and nobody else looks at it", func() bool {
		r.host.Lock()
		defer r.host.Unlock()
		return c.Region.SendHead().Load() == c.Region.SendTail().Load() && !r.End.Growing() && !r.End.Finding()
	})
	left := make(chan int, 1)
	r.react.Do(func() {
		c.Region.EventHead().Store(c.Region.EventTail().Load())
		r.share.MayRelease(r.react.Now(), &r.Ring)
		before := r.share.Releases
		r.Poll(r.react.Now())
		left <- before - r.share.Releases
	})
	if got := <-left; got != waits {
		t.Errorf("for %d events that found room %d were taken of the share", waits, got)
	}
}

// TestNudgesAreShared: who asks for readers of pairs to be rung has it done when the user's share of a
// turn has room for it.
func TestNudgesAreShared(t *testing.T) {
	n, cfg := startClients(t)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	await.Until(t, 5*time.Second, "it is served", func() bool { return c.Region.DaemonSleeps().Load() != 0 })
	r := n.clients.ringSocks()[0]
	done := make(chan struct{})
	r.react.Do(func() {
		defer close(done)
		now := r.react.Now()
		c.Region.Nudges().Add(1)
		if r.share.MayRing(now, &r.Ring); r.Poll(now) || r.End.HasNudges() {
			t.Error("a nudge is not heard")
		}
		c.Region.Nudges().Add(1)
		if r.share.Nudges = 0; !r.Poll(now) || !r.End.HasNudges() {
			t.Error("a nudge is heard with the share spent, or forgotten")
		}
		r.react.Hot(r)
	})
	<-done
	await.Until(t, 5*time.Second, "the next turn hears it", func() bool {
		heard := make(chan bool)
		r.react.Do(func() { heard <- !r.End.HasNudges() })
		return <-heard
	})
}
