package doctable

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Table is what ought to stand between the marks of this name, with the end of its last line.
type Table struct{ Name, Text string }

// Check holds a document to its tables. With update it writes those that differ; without,
// the test fails, and says the command that does. That is "go test" with what is in command,
// and stands in the marks.
func Check(t testing.TB, page, command string, update bool, tables ...Table) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text, stale, err := put(string(b), command, tables)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	if len(stale) == 0 {
		return
	}
	if !update {
		t.Errorf("%s: out of date: %s; run go test %s", page, strings.Join(stale, ", "), command)
		return
	}
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// put returns the document with the tables as they ought to be, and which were not.
func put(page, command string, tables []Table) (text string, stale []string, err error) {
	for _, x := range tables {
		begin, end := fmt.Sprintf("<!-- %s: begin; written by go test %s -->\n", x.Name, command), fmt.Sprintf("<!-- %s: end -->", x.Name)
		head, rest, ok := strings.Cut(page, begin)
		old, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			return "", nil, fmt.Errorf("there is no place for the table %q, between the lines %q and %q", x.Name, strings.TrimSpace(begin), end)
		}
		if old != x.Text {
			stale = append(stale, x.Name)
		}
		page = head + begin + x.Text + end + tail
	}
	return page, stale, nil
}
