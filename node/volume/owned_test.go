package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

const stranger = 4242 // a user that is neither the daemon's nor root

// TestStateOfAStranger: where another user has made the directory, a link to it, or a file in it, nothing of it is believed and
// nothing written, and the start ends.
func TestStateOfAStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to give files to another user takes root")
	}
	give := func(t *testing.T, name string) {
		t.Helper()
		if err := os.Lchown(name, stranger, stranger); err != nil {
			t.Fatal(err)
		}
	}
	file := func(t *testing.T, name string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(`{"version":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil { // whatever the umask is
			t.Fatal(err)
		}
	}
	link := func(t *testing.T, to, name string) {
		t.Helper()
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for what, prepare := range map[string]func(t *testing.T, dir string){
		"a directory": func(t *testing.T, dir string) { os.Mkdir(dir, 0o777); give(t, dir) },
		"a link to a directory": func(t *testing.T, dir string) {
			link(t, t.TempDir(), dir)
			give(t, dir)
		},
		"a directory behind a link": func(t *testing.T, dir string) {
			to := t.TempDir()
			give(t, to)
			link(t, to, dir)
		},
		"the lock": func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			file(t, filepath.Join(dir, "volumes.lock"), 0o600)
			give(t, filepath.Join(dir, "volumes.lock"))
		},
		"the state": func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			file(t, filepath.Join(dir, stateFile), 0o600)
			give(t, filepath.Join(dir, stateFile))
		},
		"a state that others may write": func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			file(t, filepath.Join(dir, stateFile), 0o620)
		},
		"a link in place of the state": func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			file(t, filepath.Join(dir, "other"), 0o600)
			link(t, "other", filepath.Join(dir, stateFile))
		},
		"a pipe in place of the state": func(t *testing.T, dir string) {
			os.Mkdir(dir, 0o700)
			if err := unix.Mkfifo(filepath.Join(dir, stateFile), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			prepare(t, dir)
			d, err := openDisk(dir)
			if err == nil {
				_, err = d.Read()
				d.Close()
			}
			if !errors.Is(err, rdserr.ErrPerm) || !endsStart(err) {
				t.Errorf("%v, which ends the start: %v", err, endsStart(err))
			}
		})
	}
}

// TestStateWritesThroughNoLink: what is in the place of the new state is removed, and not written through.
func TestStateWritesThroughNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, name := filepath.Join(dir, "victim"), filepath.Join(dir, stateFile)
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, name+".new"); err != nil {
		t.Fatal(err)
	}
	if err := replaceFile(name, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[string]string{victim: "precious", name: "{}"} {
		if b, err := os.ReadFile(of); string(b) != want {
			t.Errorf("%s: %q, %v", of, b, err)
		}
	}
	if st, err := os.Lstat(name); err != nil || !st.Mode().IsRegular() {
		t.Errorf("the state is %v, %v", st.Mode(), err)
	}
}
