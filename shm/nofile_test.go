package shm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutDescriptors runs f while the process may open no more.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	atMostDescriptors(t, 1, f) // which is open: of 0, F_DUPFD says EINVAL
}

// atMostDescriptors runs f while the process may open descriptors below most alone.
func atMostDescriptors(t *testing.T, most uint64, f func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	none := was
	none.Cur = most
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	f()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
}

// A process that may open no more descriptors is told so by whatever needs one, and what
// it has open stays open.
func TestWithoutDescriptors(t *testing.T) {
	a, client := newAlarm(t)
	var noAlarm, noBell, noRegion error
	withoutDescriptors(t, func() {
		_, _, noAlarm = NewAlarm()
		_, noBell = NewBell()
		_, noRegion = Create(Spec{Local: clientDst, SndBuf: 1 << 20, RcvBuf: 1 << 20})
	})
	for what, err := range map[string]error{"an alarm": noAlarm, "a bell": noBell, "a region": noRegion} {
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("%s without a descriptor: %v", what, err)
		}
	}
	if noRegion == nil || !strings.Contains(noRegion.Error(), "memfd_create") {
		t.Errorf("a region without a descriptor: %v, which names not the call", noRegion)
	}
	if a.Ring(); !rang(client) {
		t.Error("an alarm that was open does not ring any more")
	}
}
