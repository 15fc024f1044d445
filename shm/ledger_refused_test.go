package shm

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLedgerWithoutFallocate: a file system that cannot allocate is not called full.
func TestLedgerWithoutFallocate(t *testing.T) {
	old := fallocate
	t.Cleanup(func() { fallocate = old })
	fallocate = func(int, uint32, int64, int64) error { return unix.EOPNOTSUPP }
	_, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), LedgerSpec{})
	if !errors.Is(err, unix.EOPNOTSUPP) || strings.Contains(err.Error(), "no room") || !strings.Contains(err.Error(), "/run") {
		t.Error(err)
	}
}

// TestFilesThatAreTooLarge: where a limit of the process forbids a file of that size, the limit is named.
func TestFilesThatAreTooLarge(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	const most = 64 << 20 // what the test itself writes has room
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), LedgerSpec{})
	_, err2 := newMemfd("test", most+1)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := tooLarge(unix.ENOMEM, 1<<34); err != unix.ENOMEM {
		t.Errorf("nothing limits the addresses: %v", err)
	}
	for _, err := range []error{err, err2} {
		if !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "ulimit -f") || !strings.Contains(err.Error(), "67108864") {
			t.Error(err)
		}
	}
}
