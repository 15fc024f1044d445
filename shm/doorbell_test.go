package shm

import (
	"math"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newAlarm(t testing.TB) (*Alarm, int) {
	t.Helper()
	a, ear, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); unix.Close(ear) })
	return a, ear
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return n > 0 && err == nil
}

func rang(ear int) bool {
	rang, _ := Drain(ear)
	return rang
}

// soon fails the test when f takes long: a daemon's thread would stand still.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s blocks", what)
	}
}

// TestAlarmNeverBlocks: whatever its client does with its end, the daemon rings
// on; and what it rings is heard.
func TestAlarmNeverBlocks(t *testing.T) {
	for name, hostile := range map[string]func(ear int) error{
		"nothing":        func(int) error { return nil },
		"blocking":       func(ear int) error { return unix.SetNonblock(ear, false) },
		"a small buffer": func(ear int) error { return unix.SetsockoptInt(ear, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) },
		"no reading":     func(ear int) error { return unix.Shutdown(ear, unix.SHUT_RD) },
		"closed":         func(ear int) error { return unix.Close(ear) },
	} {
		a, ear, err := NewAlarm()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if err := hostile(ear); err != nil {
			t.Fatal(name, err)
		}
		soon(t, name+": Ring", func() {
			for range 100_000 {
				a.Ring()
			}
		})
		if name == "closed" {
			continue
		}
		if name != "no reading" {
			if !readable(ear) || !rang(ear) || readable(ear) || rang(ear) {
				t.Errorf("%s: rings were not heard, or heard twice", name)
			}
			a.Ring()
			if !readable(ear) {
				t.Errorf("%s: a ring after all others is not heard", name)
			}
		}
		unix.Close(ear)
	}
}

// TestAlarmOneWay: a client cannot put anything, descriptors above all, where
// the daemon would have to get rid of it.
func TestAlarmOneWay(t *testing.T) {
	_, ear := newAlarm(t)
	for _, rights := range [][]byte{nil, unix.UnixRights(ear)} {
		if err := unix.Sendmsg(ear, []byte{1}, rights, nil, unix.MSG_NOSIGNAL); err != unix.EPIPE {
			t.Errorf("sending to the daemon's end: %v", err)
		}
	}
}

// TestAlarmClosed: an alarm that was about to be rung when it was closed rings
// nothing, whoever has its descriptor's number by then.
func TestAlarmClosed(t *testing.T) {
	a, _ := newAlarm(t)
	fd := a.fd
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s[1])
	a.Close()
	if err := unix.Dup3(s[0], fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(s[0])
	a.Ring()
	if readable(s[1]) {
		t.Error("the ring went to a stranger")
	}
	a.Close()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		t.Error("the stranger's descriptor was closed:", err)
	}
	unix.Close(fd)
	(*Alarm)(nil).Close()
}

// TestAlarmRaces: alarms are closed while others ring them, and their numbers go
// to files at once; no file is written to.
func TestAlarmRaces(t *testing.T) {
	dir := t.TempDir()
	const alarms, ringers = 100, 2
	for i := range alarms {
		a, ear, err := NewAlarm()
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		quit := make(chan struct{})
		for range ringers {
			wg.Go(func() {
				for {
					select {
					case <-quit:
						return
					default:
						a.Ring()
						runtime.Gosched()
					}
				}
			})
		}
		if i%2 == 0 {
			time.Sleep(20 * time.Microsecond)
		}
		a.Close()
		var files []*os.File
		for range 3 { // one of them has the number
			s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, os.NewFile(uintptr(s[0]), dir), os.NewFile(uintptr(s[1]), dir))
		}
		time.Sleep(50 * time.Microsecond)
		close(quit)
		wg.Wait()
		for _, f := range files {
			if readable(int(f.Fd())) {
				t.Fatalf("alarm %d rang somebody else", i)
			}
		}
		for _, f := range files {
			f.Close()
		}
		unix.Close(ear)
	}
}

// TestAlarmEnd: when the daemon closes, the client's end is readable and brings
// nothing, so that a client sees the end and does not take it for a ring.
func TestAlarmEnd(t *testing.T) {
	a, ear := newAlarm(t)
	a.Ring()
	a.Close()
	if rang, _ := Drain(ear); !rang {
		t.Error("the last ring is lost")
	}
	for range 2 {
		if rang, over := Drain(ear); rang || !over || !readable(ear) {
			t.Error("the end is not seen")
		}
	}
}

// TestBellEdges: every ring of a bell is an event of its own though nobody
// reads the eventfd, and one whose counter the client has filled is watched
// without a call that could block.
func TestBellEdges(t *testing.T) {
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	set := watchEdges(t, bell)
	edge := func() bool {
		var ev [1]unix.EpollEvent
		n, _ := unix.EpollWait(set, ev[:], 0)
		return n == 1
	}
	if edge() {
		t.Error("it rang by itself")
	}
	for i := range 100 {
		Ring(bell)
		if !edge() || edge() {
			t.Fatalf("ring %d is not one event", i)
		}
	}
	if err := unix.SetNonblock(bell, false); err != nil {
		t.Fatal(err)
	}
	var most [8]byte
	le.PutUint64(most[:], math.MaxUint64-1-100)
	if _, err := unix.Write(bell, most[:]); err != nil {
		t.Fatal(err)
	}
	soon(t, "watching a full bell", func() {
		if !edge() || edge() {
			t.Error("the last ring is not one event")
		}
	})
}
