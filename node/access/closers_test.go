package access

import (
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll/tolltest"
)

// heldClose is a connection whose close takes until it is let go.
type heldClose struct {
	begun, goes chan struct{}
	once        sync.Once
}

func newHeldClose() *heldClose {
	return &heldClose{begun: make(chan struct{}), goes: make(chan struct{})}
}

func (c *heldClose) Close() error { close(c.begun); <-c.goes; return nil }

func (c *heldClose) letGo() { c.once.Do(func() { close(c.goes) }) }

func (c *heldClose) begins() bool {
	synctest.Wait()
	select {
	case <-c.begun:
		return true
	default:
		return false
	}
}

// TestClosers: of a user one connection is closed at a time, in order, and who waits for that holds up
// no other user, until there are as many users as may be.
func TestClosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewClosers(nil, 2)
		var c [5]*heldClose
		for i := range c {
			c[i] = newHeldClose()
		}
		begun := func(want ...bool) {
			t.Helper()
			for i, w := range want {
				if c[i].begins() != w {
					t.Errorf("number %d begun: %v", i, !w)
				}
			}
		}
		for range 3 {
			l.Close(7, newClosed())
		}
		synctest.Wait()
		if n := l.Waiting(); n != 0 || len(l.of) != 0 {
			t.Errorf("%d wait of %d users", n, len(l.of))
		}
		l.Close(1, c[0])
		l.Close(1, c[1])
		l.Close(2, c[2])
		l.Close(2, c[3])
		l.Close(3, c[4])
		begun(true, false, true, false, false)
		if n := l.Waiting(); n != 3 {
			t.Errorf("%d wait", n)
		}
		c[1].letGo() // when its turn comes
		c[4].letGo()
		c[0].letGo()
		begun(true, true, true, false, true)
		c[2].letGo()
		begun(true, true, true, true, true)
		c[3].letGo()
		synctest.Wait()
		if n := l.Waiting(); n != 0 || len(l.of) != 0 || l.running != 0 {
			t.Errorf("%d wait of %d users, %d are being closed", n, len(l.of), l.running)
		}
	})
}

// TestEndsAreSeen: the client of a connection that waits to be closed sees its end, and nobody who watches there is
// woken by whoever has it closed.
func TestEndsAreSeen(t *testing.T) {
	l := NewClosers(nil, 2)
	stuck := newHeldClose()
	l.Close(1, stuck)
	defer stuck.letGo()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := fds[1]
	defer unix.Close(theirs)
	tolltest.Watch(t, theirs)
	file := os.NewFile(uintptr(fds[0]), "ours")
	ours, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
	l.Close(1, ours)
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
	if took := time.Duration(after.Stime.Nano() - before.Stime.Nano()); took > 3*time.Millisecond {
		t.Errorf("the call took %v of the kernel", took)
	}
	_ = unix.SetsockoptTimeval(theirs, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	if n, err := unix.Read(theirs, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("behind one that takes long its client reads %d, %v", n, err)
	}
	if l.Waiting() != 1 {
		t.Errorf("%d wait", l.Waiting())
	}
}

func newClosed() *heldClose {
	c := newHeldClose()
	c.letGo()
	return c
}
