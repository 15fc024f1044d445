package accept

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRoomTellsWhatIsMissing: a kernel without memory is not a process without
// descriptors.
func TestRoomTellsWhatIsMissing(t *testing.T) {
	defer func() { eventfd = unix.Eventfd }()
	for fails, want := range map[unix.Errno]error{unix.EMFILE: nil, unix.ENFILE: nil, unix.ENOMEM: unix.ENOMEM, unix.ENODEV: unix.ENODEV} {
		eventfd = func(uint, int) (int, error) { return -1, fails }
		if _, ok, err := Room(1000, 1, 0); ok || !errors.Is(err, want) || (want == nil) != (err == nil) {
			t.Errorf("%v: room %v, %v", fails, ok, err)
		}
	}
	eventfd = unix.Eventfd
	if used, ok, err := Room(1<<20, 1, 0); !ok || err != nil || used < 3 {
		t.Errorf("%d in use, room %v, %v", used, ok, err)
	}
}

// TestRoomWithHoles: a number that is free below others that are in use hides none of them, whether the
// kernel counts or not.
func TestRoomWithHoles(t *testing.T) {
	was := counted
	defer func() { counted = was }()
	for _, count := range []func() int{was, func() int { return 0 }} {
		counted = count
		before, _, _ := Room(1<<20, 1, 6)
		var moved []int
		for range 10 { // as a connection is that goes over to a reactor
			fd, err := unix.Eventfd(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			moved = append(moved, own)
		}
		if used, ok, err := Room(uint64(before+10+7), 1, 6); used != before+10 || !ok || err != nil {
			t.Errorf("%d in use, want %d; room %v, %v", used, before+10, ok, err)
		}
		if _, ok, _ := Room(uint64(before+10+6), 1, 6); ok {
			t.Error("there is room beyond the limit")
		}
		for _, fd := range moved {
			unix.Close(fd)
		}
	}
}
