package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLedgerReplacesLedgersAlone: what is at the path of api.ledger and no ledger stays as it is, as a file does whose
// path was written there by mistake; a ledger of another version, or one that a crash of the machine emptied, is replaced.
func TestLedgerReplacesLedgersAlone(t *testing.T) {
	write := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	for name, c := range map[string]struct {
		make func(path string) error
		ok   bool
	}{
		"nothing":         {func(string) error { return nil }, true},
		"empty":           {write(""), true},
		"zeros":           {write(strings.Repeat("\x00", 8192)), true},
		"a later version": {write(string(ledgerMagic[:]) + "\xff\x00\x00\x00"), true},
		"a text":          {write("version = 1\n"), false},
		"a short text":    {write("a"), false},
		"a directory":     {func(path string) error { return os.Mkdir(path, 0o700) }, false},
		"a link":          {func(path string) error { return os.Symlink("elsewhere", path) }, false},
		"a pipe":          {func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		"a socket": {func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, false},
	} {
		path := filepath.Join(t.TempDir(), "l")
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Lstat(path)
		l, err := OpenLedger(path, LedgerSpec{})
		if c.ok != (err == nil) || !c.ok && !errors.Is(err, unix.EEXIST) {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
		if after, err := os.Lstat(path); !c.ok && (err != nil || !os.SameFile(before, after)) {
			t.Errorf("%s was replaced: %v", name, err)
		}
		if _, err := os.Lstat(path + ".new"); err == nil {
			t.Errorf("%s: the new file was left behind", name)
		}
	}
}
