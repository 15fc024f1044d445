package shm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLedgerOfOne: a ledger that is open is nobody else's: who opens it is told so, and it stays as it is. When
// it is closed, in order or by the end of a process, its file is replaced.
func TestLedgerOfOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	first, err := OpenLedger(path, LedgerSpec{Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	files := openFDs(t)
	for range 3 {
		if l, err := OpenLedger(path, LedgerSpec{Instance: 2}); l != nil || !errors.Is(err, ErrLedgerInUse) || !strings.Contains(err.Error(), path) {
			t.Fatalf("a second one: %v, %v", l, err)
		}
	}
	if rep, err := RecoverFile(path, nil); err != nil || rep.Instance != 1 {
		t.Errorf("the file of the first: %+v, %v", rep, err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 || openFDs(t) != files {
		t.Errorf("%v are there; %d files open before, %d after", left, files, openFDs(t))
	}
	first.Close()
	second, err := OpenLedger(path, LedgerSpec{Instance: 2})
	if err != nil {
		t.Fatalf("after the end of the first: %v", err)
	}
	if err := second.Remove(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
	if err := (*Ledger)(nil).Remove(); err != nil {
		t.Errorf("no ledger: %v", err)
	}
}

// TestLedgerRemovesItsOwn: a file that somebody has put in the place of a ledger is not removed with it.
func TestLedgerRemovesItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	first, err := OpenLedger(path, LedgerSpec{Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := OpenLedger(path, LedgerSpec{Instance: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Remove()
	if rep, err := RecoverFile(path, nil); err != nil || rep.Instance != 2 {
		t.Errorf("the second one's: %+v, %v", rep, err)
	}
}

// TestLedgersAtOnce: of those who open a ledger at once one has it at a time, whatever was left there, and each
// has it in the end.
func TestLedgersAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var have atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for done := 0; done < 20; {
				l, err := OpenLedger(path, LedgerSpec{Instance: uint64(i), Lanes: 1, Regions: 1, Commits: 1})
				if errors.Is(err, ErrLedgerInUse) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := have.Add(1); n != 1 {
					t.Errorf("%d have it", n)
				}
				if !isFile(l.fd, path) {
					t.Error("it is not the file at its path")
				}
				have.Add(-1)
				if done++; done%2 == 0 {
					l.Close() // as a daemon that was killed
				} else {
					l.Remove()
				}
			}
		})
	}
	all.Wait()
}

// TestLedgerMadeAnew: what stands where a ledger is made before it gets its name is removed, unless a daemon is at
// it, or it cannot be: then it is named.
func TestLedgerMadeAnew(t *testing.T) {
	write := func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }
	for name, c := range map[string]struct {
		make func(t *testing.T, path string) error
		want error
	}{
		"a file":  {func(_ *testing.T, path string) error { return write(path) }, nil},
		"a link":  {func(_ *testing.T, path string) error { return os.Symlink("elsewhere", path) }, nil},
		"a pipe":  {func(_ *testing.T, path string) error { return unix.Mkfifo(path, 0o600) }, nil},
		"a place": {func(_ *testing.T, path string) error { return os.Mkdir(path, 0o700) }, nil},
		"a full directory": {func(_ *testing.T, path string) error {
			return errors.Join(os.Mkdir(path, 0o700), write(filepath.Join(path, "x")))
		}, unix.ENOTEMPTY},
		"a file at work": {func(t *testing.T, path string) error {
			fd, err := lockNew(path)
			if err == nil {
				t.Cleanup(func() { unix.Close(fd) })
			}
			return err
		}, ErrLedgerInUse},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "l")
			if err := c.make(t, path+".new"); err != nil {
				t.Fatal(err)
			}
			l, err := OpenLedger(path, LedgerSpec{})
			if !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if c.want == unix.ENOTEMPTY && !strings.Contains(err.Error(), path+".new") {
				t.Errorf("what is in the way is not named: %v", err)
			}
			if _, err := os.Lstat(path + ".new"); (err == nil) != (c.want != nil) {
				t.Errorf("%s.new: %v", path, err)
			}
			l.Close()
		})
	}
}

// TestBootThatNobodyTells: where the system does not tell one start of the machine from another, a ledger of
// before is not said to be of this one.
func TestBootThatNobodyTells(t *testing.T) {
	was := bootFile
	t.Cleanup(func() { bootFile = was })
	bootFile = filepath.Join(t.TempDir(), "boot")
	for id, same := range map[string]bool{"": false, "no id\n": false, "01234567-89ab-cdef-0123-456789abcdef\n": true} {
		if err := os.WriteFile(bootFile, []byte(id), 0o600); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "l")
		l, err := OpenLedger(path, LedgerSpec{})
		if err != nil {
			t.Fatal(err)
		}
		if rep, err := RecoverFile(path, nil); err != nil || rep.SameBoot != same {
			t.Errorf("%q: %+v, %v", id, rep, err)
		}
		l.Close()
	}
}
