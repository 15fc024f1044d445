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
