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
	t.Run("one that has rung", func(t *testing.T) { testClosedRing(t, false) })
	t.Run("one whose post found no room", func(t *testing.T) { testClosedRing(t, true) })
}

func testClosedRing(t *testing.T, left bool) {
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
		if err := unix.Dup3(fds[0], number, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(number)
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
}
