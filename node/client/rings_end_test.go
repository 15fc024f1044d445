package client

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
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
