package config

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestFileThatIsNotThere: the name of the file is told once.
func TestFileThatIsNotThere(t *testing.T) {
	if err := unwrapPath(&fs.PathError{Op: "open", Path: "/etc/rdsd.toml", Err: fs.ErrPermission}); err != fs.ErrPermission {
		t.Errorf("what is wrong with a file: %v", err)
	}
	name := filepath.Join(t.TempDir(), "none.toml")
	if _, err := Load(LoadOptions{File: name}); err == nil || strings.Count(err.Error(), name) != 1 {
		t.Errorf("%v; want %s in it once", err, name)
	}
}

// TestNamesOfThePage: a name has 1 to 253 characters, and there are at most 64.
func TestNamesOfThePage(t *testing.T) {
	long := strings.Repeat("a", 253)
	for _, c := range []struct {
		names []string
		good  bool
	}{
		{[]string{long}, true},
		{[]string{long + "a"}, false},
		{[]string{"n"}, true},
		{[]string{""}, false},
		{[]string{"Capital"}, false},
		{strings.Split(strings.Repeat("n ", 63)+"n", " "), true},
		{strings.Split(strings.Repeat("n ", 64)+"n", " "), false},
	} {
		conf := Default()
		conf.HTTP.Names = c.names
		v := &validator{c: conf}
		if v.page(); (len(v.errs) == 0) != c.good {
			t.Errorf("%d names, the first of %d characters: %v", len(c.names), len(c.names[0]), v.errs)
		}
	}
}
