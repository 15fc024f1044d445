//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/shm"
)

// A ring that another call takes between the poller's word and the reading of the
// doorbell does not end the hearing; the end of the daemon does.
func TestDoorbellHeard(t *testing.T) {
	alarm, ear, err := shm.NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	var b doorbell
	if err := b.open(ear); err != nil {
		unix.Close(ear)
		t.Fatal(err)
	}
	defer b.close()
	defer b.stopListening()
	has := b.has
	b.has = func(set uintptr) bool {
		if !has(set) {
			return false
		}
		shm.Drain(b.fd)
		return true
	}
	b.listen()
	alarm.Ring()
	if !b.heard() {
		t.Error("a ring that somebody else took ended the hearing")
	}
	b.has = has
	b.listen()
	alarm.Ring()
	if !b.heard() {
		t.Error("a ring is not heard")
	}
	b.listen()
	alarm.Close()
	if b.heard() {
		t.Error("the end of the daemon was taken for a ring")
	}
}

// openDoorbell is a doorbell with its other end, until the test ends.
func openDoorbell(t *testing.T) (*shm.Alarm, *doorbell) {
	t.Helper()
	alarm, ear, err := shm.NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { alarm.Close() })
	b := &doorbell{}
	if err := b.open(ear); err != nil {
		unix.Close(ear)
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	t.Cleanup(b.stopListening)
	return alarm, b
}

// A call that sleeps is woken by the daemon and by other calls, each by its own way.
func TestDoorbellSleep(t *testing.T) {
	alarm, b := openDoorbell(t)
	for i, wake := range []func(){alarm.Ring, b.ring, func() { b.ring(); alarm.Ring() }} {
		wake()
		begun := time.Now()
		b.sleep(10 * time.Second)
		if time.Since(begun) > 5*time.Second {
			t.Errorf("%d: slept through", i)
		}
		begun = time.Now()
		b.sleep(20 * time.Millisecond)
		if time.Since(begun) < 20*time.Millisecond {
			t.Errorf("%d: the same ring for a second time", i)
		}
	}
}

// TestDoorbellSleepsThroughSignals: Go interrupts its own threads, which is no ring.
func TestDoorbellSleepsThroughSignals(t *testing.T) {
	_, b := openDoorbell(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
			}
		}
	}()
	begun := time.Now()
	b.sleep(50 * time.Millisecond) // and no longer, although each signal begins it anew
	if d := time.Since(begun); d < 50*time.Millisecond {
		t.Errorf("slept for %v", d)
	} else {
		t.Logf("slept for %v", d)
	}
	close(stop)
	<-stopped
}
