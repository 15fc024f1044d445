package volume

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestOldStateIsNotBelieved: within a start of the machine a state that is not the last one that was written is not believed, however it came
// back; one that is, or that somebody has changed by hand, or of which nothing is known, is.
func TestOldStateIsNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, dir, marks, backup string, m *Machine)
		why  string // "": it is believed
		last int    // the export that it then has; 0: none
	}{
		{"nothing", func(t *testing.T, dir, marks, backup string, m *Machine) {}, "", 3},
		{"copied over", func(t *testing.T, dir, marks, backup string, m *Machine) {
			cp(t, backup, filepath.Join(dir, stateFile))
		}, "is not the last one", 0},
		{"moved back", func(t *testing.T, dir, marks, backup string, m *Machine) {
			ok(t, os.Rename(backup, filepath.Join(dir, stateFile)))
		}, "is not the last one", 0},
		{"all of the directory", func(t *testing.T, dir, marks, backup string, m *Machine) {
			ok(t, os.RemoveAll(dir))
			ok(t, os.Mkdir(dir, 0o700))
			cp(t, backup, filepath.Join(dir, stateFile))
		}, "is not the last one", 0},
		{"gone", func(t *testing.T, dir, marks, backup string, m *Machine) {
			ok(t, os.Remove(filepath.Join(dir, stateFile)))
		}, "is gone", 0},
		{"changed by hand", func(t *testing.T, dir, marks, backup string, m *Machine) {
			b, err := os.ReadFile(backup)
			ok(t, err)
			_, rest, has := summed(b)
			if !has {
				t.Fatal("no sum")
			}
			ok(t, os.WriteFile(filepath.Join(dir, stateFile), append([]byte(stateOpens), rest...), 0o600))
		}, "", 2},
		{"of an earlier version", func(t *testing.T, dir, marks, backup string, m *Machine) {
			b, err := os.ReadFile(backup)
			ok(t, err)
			_, rest, _ := summed(b)
			rest = bytes.Replace(rest, []byte("\t\"writes\": 2,\n"), nil, 1)
			if bytes.Contains(rest, []byte("writes")) {
				t.Fatalf("%s", rest)
			}
			ok(t, os.WriteFile(filepath.Join(dir, stateFile), append(append([]byte(stateOpens), sumLine(rest)...), rest...), 0o600))
		}, "", 2},
		{"after a start of the machine", func(t *testing.T, dir, marks, backup string, m *Machine) {
			cp(t, backup, filepath.Join(dir, stateFile))
			m.Boot = "another"
		}, "", 2},
		{"no mark", func(t *testing.T, dir, marks, backup string, m *Machine) {
			cp(t, backup, filepath.Join(dir, stateFile))
			ok(t, os.RemoveAll(marks))
		}, "", 2},
		{"a mark that cannot be read", func(t *testing.T, dir, marks, backup string, m *Machine) {
			cp(t, backup, filepath.Join(dir, stateFile))
			files, _ := filepath.Glob(filepath.Join(marks, "*.mark"))
			if len(files) != 1 {
				t.Fatal(files)
			}
			ok(t, os.WriteFile(files[0], []byte("x"), 0o600))
		}, "", 2},
		{"a mark that could not be written for the last", func(t *testing.T, dir, marks, backup string, m *Machine) {
			newFileMark(marks, dir).Write(m.Boot, 2)
		}, "", 3},
		{"the mark of another directory", func(t *testing.T, dir, marks, backup string, m *Machine) {
			newFileMark(marks, dir+"2").Write(m.Boot, 1000)
		}, "", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, marks, backup := filepath.Join(t.TempDir(), "state"), t.TempDir(), filepath.Join(t.TempDir(), "backup")
			m := thisMachine(nil)
			m.Boot = "this"
			write := func(s *store, n int) {
				t.Helper()
				ok(t, s.write(func() state {
					return state{NextID: 1, Exports: []exportState{{Name: fmt.Sprint(n), Path: "/x"}}}
				}))
			}
			s, _, err := openStore(m, nil, dir, marks)
			ok(t, err)
			write(s, 1)
			write(s, 2)
			cp(t, filepath.Join(dir, stateFile), backup)
			write(s, 3)
			s.close()
			c.do(t, dir, marks, backup, m)
			for again := range 2 {
				s, st, err := openStore(m, nil, dir, marks)
				ok(t, err)
				if c.why != "" && again == 0 {
					if s.aside == nil || !strings.Contains(s.aside.Error(), c.why) || rdserr.Errno(s.aside) != rdserr.ErrInvalid.Errno || s.unread || st.Forgot == 0 || len(st.Exports) > 0 {
						t.Errorf("%v, %+v; want that it %s", s.aside, st, c.why)
					}
					write(s, 4) // which the next one believes
				} else if s.aside != nil || again == 0 && st.Exports[0].Name != fmt.Sprint(c.last) || again == 1 && st.Exports[0].Name != "4" {
					t.Errorf("%d: %v, %+v", again, s.aside, st)
				} else {
					write(s, 4)
				}
				s.close()
			}
		})
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func cp(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	ok(t, err)
	ok(t, os.WriteFile(to, b, 0o600))
}

// TestMendedStateIsGivenBack: the remedy of a state that could not be used leads out of it, though others were written since.
func TestMendedStateIsGivenBack(t *testing.T) {
	dir, marks := filepath.Join(t.TempDir(), "state"), t.TempDir()
	name, m := filepath.Join(dir, stateFile), thisMachine(nil)
	m.Boot = "this"
	opened := func() (*store, state) {
		t.Helper()
		s, st, err := openStore(m, nil, dir, marks)
		ok(t, err)
		return s, st
	}
	s, _ := opened()
	ok(t, s.write(func() state { return state{NextID: 1, Exports: []exportState{{Name: "disk", Path: "/x"}}} }))
	s.close()
	b, err := os.ReadFile(name)
	ok(t, err)
	ok(t, os.WriteFile(name, b[:len(b)-2], 0o600))
	s, _ = opened()
	if s.aside == nil {
		t.Fatal("it was believed")
	}
	for range 3 {
		ok(t, s.write(func() state { return state{NextID: 1} }))
	}
	h := Host{store: s}
	l := h.StateTroubles()
	if len(l) != 1 || !strings.Contains(l[0].Mend, `take its line "sum" away`) {
		t.Errorf("%+v", l)
	}
	s.close()
	_, rest, _ := summed(b)
	ok(t, os.WriteFile(name+".unusable", append([]byte(stateOpens), rest...), 0o600))
	ok(t, os.Rename(name+".unusable", name))
	s, st := opened()
	defer s.close()
	if s.aside != nil || len(st.Exports) != 1 {
		t.Errorf("%v, %+v", s.aside, st)
	}
}
