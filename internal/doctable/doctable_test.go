package doctable

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const doc = "before\n<!-- one: begin; written by go test ./x -update -->\n| 1 |\n<!-- one: end -->\nbetween\n<!-- two: begin; written by go test ./x -update -->\n<!-- two: end -->\nbehind\n"

func TestPut(t *testing.T) {
	one, two := Table{"one", "| 1 |\n"}, Table{"two", "| 2 |\n"}
	if text, stale, err := put(doc, "./x -update", []Table{one}); text != doc || len(stale) != 0 || err != nil {
		t.Errorf("what is right is %q, %q, %v", stale, text, err)
	}
	text, stale, err := put(doc, "./x -update", []Table{two, one})
	want := strings.Replace(doc, "<!-- two: end", "| 2 |\n<!-- two: end", 1)
	if text != want || !slices.Equal(stale, []string{"two"}) || err != nil {
		t.Errorf("%q, %v:\n%s", stale, err, text)
	}
	for _, x := range []struct {
		page, command string
		table         Table
	}{
		{doc, "./x -update", Table{Name: "three"}},
		{doc, "./y -update", one}, // another test's
		{strings.Replace(doc, "one: end", "", 1), "./x -update", one},
	} {
		if text, _, err := put(x.page, x.command, []Table{x.table}); err == nil || !strings.Contains(err.Error(), "no place") {
			t.Errorf("%+v: %v, %q", x.table, err, text)
		}
	}
}

// failing notes what a test would have failed with.
type failing struct {
	testing.TB
	said []string
}

func (f *failing) Helper()                        {}
func (f *failing) Errorf(format string, _ ...any) { f.said = append(f.said, format) }

func TestCheckWritesOnlyWhenAsked(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, update := range []bool{false, true} {
		f := &failing{TB: t}
		Check(f, page, "./x -update", update, Table{"two", "| 2 |\n"})
		b, err := os.ReadFile(page)
		if err != nil || strings.Contains(string(b), "| 2 |") != update || len(f.said) == 0 != update {
			t.Errorf("update %v: %q, %v:\n%s", update, f.said, err, b)
		}
	}
	Check(t, page, "./x -update", false, Table{"two", "| 2 |\n"})
}
