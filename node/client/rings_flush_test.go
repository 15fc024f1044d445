package client

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// undecided asks how many datagrams have no outcome, of all that was posted.
func undecided(t *testing.T, r *clienttest.RingClient, id uint64) int {
	t.Helper()
	r.Ask(t, clienttest.FlushOf(id, 50*time.Millisecond))
	f := r.Answer(t).GetFlushResult()
	if f.GetId() != id || syscall.Errno(f.GetErrno()) != syscall.ETIMEDOUT {
		t.Errorf("flush %d is answered by %v", id, f)
	}
	return int(f.GetInFlight())
}

// TestFlushAwaitsItsPoint: a Flush is answered when what was posted before it is decided, be it that the
// ledger has no room for all of that at a time; nothing waits behind it, and it waits for nothing that was
// posted later.
func TestFlushAwaitsItsPoint(t *testing.T) {
	n, cfg := startClients(t)
	full := make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	defer isFull()
	step := func(what string) error {
		if what == "grow" {
			<-full
			return errors.New("nothing grows")
		}
		return nil
	}
	n.clients.fails.Store(&step)
	c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer c.Close()
	behind := netip.AddrPortFrom(clienttest.Nobody.Addr(), 8)
	var tag uint64
	c.Post(t, clienttest.Nobody, 164, 1, &tag)
	if got := undecided(t, c, 1); got != 164 {
		t.Errorf("while the ledger grows %d are undecided of 164", got)
	}
	isFull()
	if got := undecided(t, c, 2); got != 164 {
		t.Errorf("when it cannot grow %d are undecided of 164", got)
	}
	posted := c.Region.SendTail().Load()
	c.Ask(t, clienttest.FlushOf(3, 0))
	c.Ask(t, clienttest.CancelOf(4, behind)) // answered when the flush is read
	if m := c.Answer(t); m.GetCancelResult().GetId() != 4 {
		t.Fatalf("answered by %v", m)
	}
	c.Post(t, behind, 1, 1, &tag)
	c.Ask(t, clienttest.CancelOf(5, clienttest.Nobody))
	for range 2 {
		switch m := c.Answer(t); {
		case m.GetFlushResult().GetId() == 3 && m.GetFlushResult().GetErrno() == 0:
			if taken := c.Region.SendHead().Load(); taken < posted {
				t.Errorf("the flush is answered with %d descriptors taken of %d", taken, posted)
			}
		case m.GetCancelResult().GetId() == 5 && m.GetCancelResult().GetErrno() == 0:
		default:
			t.Errorf("answered by %v", m)
		}
	}
	cancelled := 0
	await.Until(t, 5*time.Second, "all are cancelled but the last", func() bool {
		cancelled += c.Outcomes(t)[shm.Cancelled]
		return cancelled == 164
	})
	if got := undecided(t, c, 6); got != 1 {
		t.Errorf("%d are undecided, want the last", got)
	}
}

// TestPointsWaitForMemory: what waits in the send ring for memory goes on waiting, and refuses nothing, when
// there is a Flush, or a Cancel of something else; a Cancel of it needs no memory.
func TestPointsWaitForMemory(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	hog := n.deps.Memory.Account(quota.User(4711))
	all := n.deps.Memory.Limit()
	refused := n.deps.Budget.RefusedSending
	to := netip.AddrPortFrom(clienttest.Nobody.Addr(), 8)
	var tag uint64
	post := func() (taken uint64) {
		t.Helper()
		hog.Grow(quota.Waiting, all)
		before := refused()
		r.Post(t, to, 10, 1, &tag)
		await.Until(t, 5*time.Second, "somebody asks for memory", func() bool { return refused() > before })
		return r.Region.SendHead().Load()
	}
	cancel := func(id uint64, dst netip.AddrPort) int {
		t.Helper()
		r.Ask(t, clienttest.CancelOf(id, dst))
		res := r.Answer(t).GetCancelResult()
		if res.GetId() != id || res.GetErrno() != 0 {
			t.Errorf("cancel %d: %v", id, res)
		}
		return int(res.GetCancelled())
	}
	r.Post(t, to, 1, 1, &tag) // it knows the peer
	if got := undecided(t, r, 1); got != 1 {
		t.Errorf("%d are undecided of the first", got)
	}
	taken := post()
	if got := undecided(t, r, 2); got != 11 {
		t.Errorf("without memory %d are undecided of 11", got)
	}
	if got := cancel(3, clienttest.Nobody); got != 0 {
		t.Errorf("%d are cancelled", got)
	}
	if head := r.Region.SendHead().Load(); head != taken {
		t.Errorf("%d descriptors are taken for want of memory", head-taken)
	}
	hog.Give(quota.Waiting, all)
	await.Until(t, 5*time.Second, "there is memory, and all are taken", func() bool {
		return r.Region.SendHead().Load() == r.Region.SendTail().Load()
	})
	if got := undecided(t, r, 4); got != 11 {
		t.Errorf("with memory %d are undecided of 11", got)
	}
	if post(); undecided(t, r, 5) != 21 {
		t.Error("of 11 with memory and 10 without not all are undecided")
	}
	if got := cancel(6, to); got != 11 {
		t.Errorf("%d are cancelled at once, want the 11 that were taken", got)
	}
	await.Until(t, 5*time.Second, "the others are taken", func() bool {
		return r.Region.SendHead().Load() == r.Region.SendTail().Load()
	})
	hog.Give(quota.Waiting, all) // events may need some
	cancelled := 0
	await.Until(t, 5*time.Second, "all are cancelled", func() bool {
		cancelled += r.Outcomes(t)[shm.Cancelled]
		return cancelled == 21
	})
}

// TestTooManyCancels: cancels of more destinations than are remembered, while what stands first in the send ring waits
// for memory, are refused one by one; the socket and what it has posted stay.
func TestTooManyCancels(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	to := netip.AddrPortFrom(clienttest.Nobody.Addr(), 8)
	var tag uint64
	r.Post(t, to, 1, 1, &tag) // it knows the peer
	undecided(t, r, 1)
	hog := n.deps.Memory.Account(quota.User(4711))
	all := n.deps.Memory.Limit()
	hog.Grow(quota.Waiting, all)
	r.Post(t, to, 10, 1, &tag)
	await.Until(t, 5*time.Second, "somebody asks for memory", func() bool { return n.deps.Budget.RefusedSending() > 0 })
	cancel := func(port uint16) syscall.Errno {
		t.Helper()
		r.Ask(t, clienttest.CancelOf(uint64(port), netip.AddrPortFrom(netip.MustParseAddr("127.0.99.98"), port)))
		res := r.Answer(t).GetCancelResult()
		if res.GetId() != uint64(port) {
			t.Fatalf("cancel %d: %v", port, res)
		}
		return syscall.Errno(res.GetErrno())
	}
	const most = shm.DefaultFlows
	sockets := func() int64 { return n.deps.Memory.Kinds()[quota.Sockets].Used }
	before := sockets()
	for port := range uint16(most) {
		if e := cancel(port + 1); e != 0 {
			t.Fatalf("cancel %d of %d is refused: %v", port+1, most, e)
		}
	}
	if e := cancel(most + 1); e != rdserr.ErrTooMany.Errno {
		t.Errorf("one more: %v", e)
	}
	if e := cancel(1); e != 0 {
		t.Errorf("one of them once more: %v", e)
	}
	if got := sockets() - before; got != (most-freeMarks)*markBytes {
		t.Errorf("%d bytes are charged for what is remembered of %d", got, most)
	}
	hog.Give(quota.Waiting, all)
	await.Until(t, 5*time.Second, "there is memory, and all are taken", func() bool {
		return r.Region.SendHead().Load() == r.Region.SendTail().Load()
	})
	if got := undecided(t, r, 9999); got != 11 {
		t.Errorf("%d are undecided of 11", got)
	}
	if got := sockets(); got != before {
		t.Errorf("when nothing is remembered any more %d bytes more are charged", got-before)
	}
}

// TestUnreadAnswersAreCharged: answers that a client with rings does not read are charged to its user, but for
// a few, until it has read them.
func TestUnreadAnswersAreCharged(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	var tag uint64
	r.Post(t, clienttest.Nobody, 1, 1, &tag)
	if got := undecided(t, r, 1); got != 1 {
		t.Errorf("%d are undecided", got)
	}
	s := n.clients.ringSocks()[0]
	waiting := func() (out int, held int64) {
		s.s.wmu.Lock()
		defer s.s.wmu.Unlock()
		return len(s.ctl.out), s.ctl.outHeld
	}
	calls := func() int64 { return n.deps.Memory.Kinds()[quota.Calls].Used }
	await.Until(t, time.Minute, "nothing is charged", func() bool { return calls() == 0 })
	for id := range uint64(maxFlushes) {
		r.Ask(t, clienttest.FlushOf(id+2, 0))
	}
	r.Ask(t, clienttest.CancelOf(1, clienttest.Nobody)) // all of them are answered then
	await.Until(t, time.Minute, "answers wait", func() bool { out, _ := waiting(); return out > freeReplies })
	out, held := waiting()
	if want := int64(out-freeReplies) * outBytes; out <= freeReplies || held < want || calls() < held {
		t.Errorf("%d answers are not read, for which %d bytes are held and %d charged; want %d at least", out, held, calls(), want)
	}
	for range maxFlushes + 1 {
		if m := r.Answer(t); m.GetFlushResult().GetErrno() != 0 || m.GetCancelResult().GetErrno() != 0 {
			t.Fatalf("answered by %v", m)
		}
	}
	await.Until(t, time.Minute, "nothing is charged", func() bool { return calls() == 0 })
}
