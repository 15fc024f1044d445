package shm

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/internal/toll/tolltest"
)

// TestAlarmIsCostly: a client that has a doorbell watched two hundred thousand times is
// found out by rings, and others are not.
func TestAlarmIsCostly(t *testing.T) {
	a, ear := newAlarm(t)
	b, other := newAlarm(t)
	var found, innocent error
	a.Costly = func(err error) { found = err }
	b.Costly = func(err error) { innocent = err }
	tolltest.Watch(t, ear)
	for range 100 {
		a.Ring()
		b.Ring()
		rang(other)
		if found != nil {
			break
		}
	}
	if !toll.Costly(found) {
		t.Errorf("100 rings of a doorbell with 200,000 watchers: %v", found)
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
			tolltest.Watch(t, p[1])
			for range 100 {
				if way == "to the client" {
					_, err = k.Send([]byte{1})
				} else if _, err = theirs.Send([]byte{1}); err == nil {
					_, _, err = k.Recv()
				}
				if toll.Costly(err) {
					return
				}
			}
			t.Errorf("100 messages and 200,000 watchers: %v", err)
		})
	}
}

// TestConnIsCostly: the same for an end that blocks, whose owner is told once.
func TestConnIsCostly(t *testing.T) {
	for _, way := range []string{"read", "written"} {
		t.Run(way, func(t *testing.T) {
			c, k := pair(t)
			told := 0
			c.Costly = func(err error) {
				if told++; !toll.Costly(err) {
					t.Error(err)
				}
			}
			tolltest.Watch(t, k.FD)
			found := 0
			for range 100 {
				var err error
				if way == "written" {
					err = c.WriteMessage([]byte{1})
				} else if _, err = k.Send([]byte{1}); err == nil {
					_, _, err = c.ReadMessage()
				}
				if toll.Costly(err) {
					found++
				}
				if _, _, e := k.Recv(); found == 2 || e != nil && e != ErrAgain && err == nil {
					break
				}
			}
			if found == 0 || told != 1 {
				t.Errorf("100 messages and 200,000 watchers: found %d times, its owner was told %d times", found, told)
			}
		})
	}
}
