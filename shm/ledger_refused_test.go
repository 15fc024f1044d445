package shm

import (
	"errors"
	"os"
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

// TestLedgerOnAFullDisk: where not even the header finds room there is no ledger, and the
// one that a daemon uses stays what it is. What a daemon that is gone has left makes room for the next.
func TestLedgerOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	path := filepath.Join(dir, "ledger")
	l, err := OpenLedger(path, LedgerSpec{Instance: 7})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	full, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, n := range []int{4096, 1} {
		for b := make([]byte, n); err == nil; {
			_, err = full.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	other := filepath.Join(dir, "other")
	if l, err := OpenLedger(other, LedgerSpec{Instance: 8}); l != nil || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("without room: %v, %v", l, err)
	}
	if left, _ := filepath.Glob(other + "*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if l, err := OpenLedger(path, LedgerSpec{Instance: 8}); l != nil || !errors.Is(err, ErrLedgerInUse) {
		t.Errorf("of a daemon that runs: %v, %v", l, err)
	}
	if rep, err := RecoverFile(path, nil); err != nil || rep.Instance != 7 {
		t.Errorf("the ledger of before: %+v, %v", rep, err)
	}
	l.Close()
	next, err := OpenLedger(path, LedgerSpec{Instance: 9})
	if err != nil {
		t.Fatalf("of a daemon that is gone: %v", err)
	}
	defer next.Close()
	if rep, err := RecoverFile(path, nil); err != nil || rep.Instance != 9 {
		t.Errorf("the next one's: %+v, %v", rep, err)
	}
}
