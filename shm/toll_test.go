package shm

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTollJudges: who is long by the clock is measured, and ended only when the thread
// itself was busy for long, several times in a row or once for very long.
func TestTollJudges(t *testing.T) {
	const short, long, very = time.Microsecond, tollLong, tollVery
	type call struct {
		took     time.Duration
		measured bool // and so the client is a suspect before it
	}
	for _, c := range []struct {
		name  string
		calls []call
		ended bool // by the last of them
	}{
		{"short ones", []call{{short, false}, {long - 1, false}}, false},
		{"long by the clock alone", []call{{very, false}, {short, true}, {very, true}}, true},
		{"interrupted now and then", []call{{long, false}, {long, true}, {long, true}, {short, true}, {long, true}, {long, true}, {short, true}}, false},
		{"three long ones", []call{{long, false}, {long, true}, {long, true}, {long, true}}, true},
		{"a very long one", []call{{long, false}, {very, true}}, true},
		{"just not very long", []call{{long, false}, {very - 1, true}}, false},
	} {
		var u toll
		for i, k := range c.calls {
			if got := u.suspect.Load() > 0; got != k.measured {
				t.Errorf("%s: call %d: a suspect: %v", c.name, i, got)
			}
			err := u.judge(k.took, k.measured)
			if want := c.ended && i == len(c.calls)-1; (err != nil) != want || Costly(err) != want {
				t.Errorf("%s: call %d: %v", c.name, i, err)
			}
		}
	}
	var u toll
	u.judge(long, false)
	for range tollLook {
		if u.suspect.Load() <= 0 {
			t.Fatal("a suspect is not looked at long enough")
		}
		u.judge(short, true)
	}
	if u.suspect.Load() != 0 {
		t.Error("a suspect stays one for ever")
	}
}

// watchers has so many wait for fd as a client can: in a few calls that name it very
// often. again waits until they are back from the last wake-up.
func watchers(t *testing.T, fd int) (again func()) {
	t.Helper()
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	each := int(min(lim.Cur, 50_000))
	const all = 200_000
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		Ring(stop)
		wg.Wait()
		unix.Close(stop)
	})
	for range all / each {
		wg.Go(func() {
			l := make([]unix.PollFd, each)
			for i := range l {
				l[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
			}
			for l[0] = (unix.PollFd{Fd: int32(stop), Events: unix.POLLIN}); l[0].Revents == 0; {
				if _, err := unix.Poll(l, -1); err != nil && err != unix.EINTR {
					t.Error(err)
					return
				}
				Drain(fd)
			}
		})
	}
	return func() { time.Sleep(50 * time.Millisecond) }
}

// TestAlarmIsCostly: a client that has a doorbell watched two hundred thousand times is
// found out by rings, and others are not.
func TestAlarmIsCostly(t *testing.T) {
	a, ear := newAlarm(t)
	b, other := newAlarm(t)
	var found, innocent error
	a.Costly = func(err error) { found = err }
	b.Costly = func(err error) { innocent = err }
	again := watchers(t, ear)
	for range 200 {
		again()
		a.Ring()
		b.Ring()
		rang(other)
		if found != nil {
			break
		}
	}
	if !Costly(found) {
		t.Errorf("200 rings of a doorbell with 200,000 watchers: %v", found)
	}
	if innocent != nil {
		t.Errorf("another one is said to be costly: %v", innocent)
	}
}

// TestControlIsCostly: the same for what the daemon takes from a control connection,
// which wakes who waits to write there, and for what it sends.
func TestControlIsCostly(t *testing.T) {
	for _, way := range []string{"from the client", "to the client"} {
		t.Run(way, func(t *testing.T) {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			k, theirs := NewControl(p[0], 0), NewControl(p[1], 0)
			defer k.Close()
			defer unix.Close(p[1])
			again := watchers(t, p[1])
			for range 200 {
				again()
				if way == "to the client" {
					_, err = k.Send([]byte{1})
				} else if _, err = theirs.Send([]byte{1}); err == nil {
					_, _, err = k.Recv()
				}
				if Costly(err) {
					return
				}
			}
			t.Errorf("200 messages and 200,000 watchers: %v", err)
		})
	}
}
