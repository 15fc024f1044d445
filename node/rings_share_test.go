package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/shm"
)

// TestShareOfATurn: who finds the user's share spent is first in the next turn, and
// then those behind it; who was to be first and does not come holds nobody up for longer
// than a turn; and a share is there as long as its user has rings.
func TestShareOfATurn(t *testing.T) {
	n, _ := startOne(t)
	w := n.core.(*hosts).workers[0]
	done := make(chan struct{})
	w.Do(func() {
		defer close(done)
		s := w.share(77)
		if w.share(77) != s || w.share(78) == s {
			t.Error("a share is not its user's")
		}
		var r [4]*ringSock
		for i := range r {
			r[i] = &ringSock{}
		}
		turn := func(posts, bytes int, want string) {
			t.Helper()
			var got []byte
			for i, x := range r {
				if x != nil && s.may(w, x) {
					got = append(got, byte('0'+i))
					for range posts {
						s.posts++
						s.bytes += bytes
					}
				}
			}
			s.end()
			if string(got) != want {
				t.Errorf("%q were served, want %q", got, want)
			}
		}
		turn(sharePosts/2, 0, "01")
		turn(sharePosts/2, 0, "23")
		turn(1, shareBytes, "0")
		turn(1, shareBytes, "1")
		turn(1, shareBytes, "2")
		turn(1, shareBytes-1, "3")
		turn(1, shareBytes-1, "01")
		r[2] = nil
		turn(1, 0, "")
		turn(1, 0, "013")
		w.unshare(77)
		if w.shares[77] != s {
			t.Error("a share went with the first of its user's rings")
		}
		w.unshare(77)
		w.unshare(78)
		if w.shares[77] != nil || w.shares[78] != nil {
			t.Error("a share stays behind")
		}
	})
	<-done
}

// TestCrowd: many sockets of a user that all have something to send have no more of it
// taken in a turn than one would, all of it is taken, and what Flush waits for as well.
func TestCrowd(t *testing.T) {
	n, cfg := startOne(t)
	w := n.core.(*hosts).workers[0]
	const sockets, each, bytes = 24, 12, 64 << 10
	var crowd []*ringClient
	for range sockets {
		r := attachRing(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
		defer r.close()
		crowd = append(crowd, r)
		clear(r.region.SendArena()[:bytes])
	}
	for _, flush := range []bool{false, true} {
		gate, held := make(chan struct{}), make(chan struct{})
		w.Do(func() { close(held); <-gate })
		<-held
		before := n.count.RingPosts.Load()
		turns, _, _, _ := w.Stats()
		for i, r := range crowd {
			to := crowd[(i+1)%sockets].bound.GetLocal().GetPort()
			r.region.PutFlow(0, &shm.FlowEntry{Dst: netip.AddrPortFrom(cfg.RDS.Addresses[0], uint16(to)), Gen: 1})
			tail := r.region.SendTail().Load()
			for k := range uint64(each) {
				r.region.PutSend(tail+k, shm.MakeWord(shm.KindEach, bytes, 1), &shm.SendDesc{Tag: tail + k, Gen: 1, Cookie: uint32(tail + k)})
			}
			r.region.SendTail().Store(tail + each)
			shm.Ring(r.bell)
			if flush {
				r.ask(t, flushOf(1, 0))
			}
		}
		close(gate)
		within(t, 10*time.Second, "everything is taken", func() bool {
			return n.count.RingPosts.Load()-before == sockets*each
		})
		now, _, _, _ := w.Stats()
		const most = shareBytes/bytes + 1
		if took := now - turns; took < sockets*each/most {
			t.Errorf("flush %v: %d descriptors of %d bytes were taken in %d turns, a turn takes %d", flush, sockets*each, bytes, took, most)
		}
		for _, r := range crowd {
			if flush {
				if m := r.answer(t); !m.HasFlushResult() {
					t.Errorf("%v", m)
				}
			}
			r.region.EventHead().Store(r.region.EventTail().Load())
			head, tail := r.region.RecvHead().Load(), r.region.RecvTail().Load()
			at := r.region.ReleaseTail().Load()
			for ; head != tail; head++ {
				var d shm.RecvDesc
				r.region.GetRecv(head, &d)
				r.region.PutRelease(at, d.Slot)
				at++
			}
			r.region.RecvHead().Store(tail)
			r.region.ReleaseTail().Store(at)
			shm.Ring(r.bell)
		}
	}
}

// TestKeeperIsTold: what goes through rings has the keeper look at the memory that it
// touches after so many bytes, and not before.
func TestKeeperIsTold(t *testing.T) {
	n := &Node{memory: quota.New(1<<30, nil)}
	h := &host{all: &hosts{node: n}}
	told := func() bool {
		h.publishRings(nil)
		select {
		case <-n.memory.Wanted():
			return true
		default:
			return false
		}
	}
	h.rings.moved = movedStep
	if told() {
		t.Error("too early")
	}
	h.rings.moved++
	if !told() || h.rings.moved != 0 {
		t.Errorf("not told; %d bytes are still to be told", h.rings.moved)
	}
}
