package client

import (
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/shm"
)

// TestClosedRingTakesNothing: a ring that has ended may be made hot once more, by a thread that
// asked for it before. It has no work then, sleeps, and takes nothing from what has the number of its
// doorbell's descriptor by then.
func TestClosedRingTakesNothing(t *testing.T) {
	for what, left := range map[string]bool{"one that has rung": false, "one whose post found no room": true} {
		done := false
		for tries := 0; !done && tries < 10; tries++ {
			t.Run(what, func(t *testing.T) { done = closedRing(t, left) })
		}
		if !done {
			t.Errorf("%s: somebody else always has the number", what)
		}
	}
}

// closedRing reports false where somebody else has the number of the doorbell's descriptor by then.
func closedRing(t *testing.T, left bool) bool {
	w, cfg := startClients(t)
	c := clienttest.AttachRing(t, cfg, clienttest.OneDoorbell(cfg.RDS.Addresses[0], 0))
	e, _ := w.hosts.Locals()[0].Lock()
	r := e.Sockets()[0].Options().Data.(*ringSock)
	w.hosts.Locals()[0].Unlock()
	await.Until(t, time.Minute, "it is served", func() bool {
		r.host.Lock()
		defer r.host.Unlock()
		return r.begun
	})
	number := r.alarm.FD()
	r.react.Do(func() {
		r.rung, r.left = true, left
		r.close()
	})
	c.Close()
	clienttest.CloseFDs([]int{c.Bell, c.Ear})
	await.Until(t, 5*time.Second, "the doorbell is closed", func() bool {
		_, err := unix.FcntlInt(uintptr(number), unix.F_GETFD, 0)
		return err == unix.EBADF
	})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer clienttest.CloseFDs(fds[:])
	if fds[0] != number {
		got, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, number)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(got)
		if got != number {
			return false
		}
	}
	if _, err := unix.Write(fds[1], make([]byte, 96)); err != nil {
		t.Fatal(err)
	}
	r.react.Do(func() {
		r.react.Hot(r)
		if r.Poll(r.react.Now()) {
			t.Error("it has work")
		}
		if !r.Sleep() {
			t.Error("it does not sleep")
		}
	})
	r.react.Sync()
	if n, err := unix.IoctlGetInt(number, unix.SIOCINQ); err != nil || n != 96 {
		t.Errorf("of 96 bytes that are another's %d are left, %v", n, err)
	}
	return true
}

// TestClosedIsChargedForWhatIsNeeded: a socket that is closed, and whose region cannot go yet, is
// charged for the pages of its send arena that are still read, and not for what the end has cancelled. Its
// user is, also when nothing else is left of that one, and it comes again.
func TestClosedIsChargedForWhatIsNeeded(t *testing.T) {
	for _, x := range []struct {
		kept int // of 300 descriptors in one page
		gone bool
	}{{0, false}, {1, false}, {3, false}, {3, true}} {
		kept := x.kept
		n, cfg := startClients(t)
		c := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
		const posts = 300
		c.Region.SendArena()[0] = 1
		c.Region.PutFlow(0, &shm.FlowEntry{Dst: clienttest.Nobody, Gen: 1})
		for i := range uint64(posts) {
			c.Region.PutSend(i, shm.MakeWord(shm.KindEach, 1, 1), &shm.SendDesc{Tag: i, Gen: 1, Slot: 64 * (i % 64), Cookie: uint32(i)})
		}
		c.Region.SendTail().Store(posts)
		shm.Ring(c.Bell)
		await.Until(t, time.Minute, "all are under way", func() bool { return n.deps.Count.RingPosts.Load() == posts })
		r, before := n.clients.ringSocks()[0], pagesCharged(n)
		r.react.Do(func() {
			r.host.Lock()
			r.reserved++ // it is being read into
			for i := range kept {
				r.posts[i].left++ // as if more of it had begun to leave
			}
			r.host.Unlock()
			r.close()
		})
		r.react.Sync()
		<-r.buried
		if got, most := pagesCharged(n)-before, int64(min(kept, 1)*os.Getpagesize()); got > most || r.evacuated != most {
			t.Errorf("%d of %d descriptors are needed: %d bytes are charged for what is moved, and %d more in all; want %d", kept, posts, r.evacuated, got, most)
		}
		if x.gone {
			c.Close()
			await.Until(t, time.Minute, "the client is gone", func() bool { return n.users.Len() == 0 })
		}
		again := n.deps.User(r.s.id)
		if got := again.Used(); got < r.evacuated {
			t.Errorf("its user is charged %d bytes when it comes again; %d are still needed", got, r.evacuated)
		}
		r.host.Lock()
		r.reserved--
		r.freeIfIdle()
		r.host.Unlock()
		if !x.gone {
			c.Close()
		}
		await.Until(t, time.Minute, "nothing is charged", func() bool { return pagesPaid(n)+pagesCharged(n) == 0 && again.Used() == 0 })
		again.Close()
		await.Until(t, time.Minute, "the user is forgotten", func() bool {
			return !slices.ContainsFunc(n.deps.Memory.Holders(), func(h quota.Holding) bool { return h.Holder == again.Holder() })
		})
	}
}
