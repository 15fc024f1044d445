package processtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPythonIsPinned: what the tests of the Python SDK install has exact versions, all
// that pyproject.toml names among them.
func TestPythonIsPinned(t *testing.T) {
	at := filepath.Join("..", "..", "sdk", "python")
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(at, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	pinned := map[string]bool{}
	exact := regexp.MustCompile(`^([A-Za-z0-9_.-]+)==[0-9][0-9A-Za-z.]*$`)
	for line := range strings.Lines(read("requirements-test.txt")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		m := exact.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%q is no exact version", line)
			continue
		}
		pinned[strings.ToLower(strings.ReplaceAll(m[1], "_", "-"))] = true
	}
	for _, m := range regexp.MustCompile(`"([a-z0-9-]+)>=`).FindAllStringSubmatch(read("pyproject.toml"), -1) {
		if !pinned[m[1]] {
			t.Errorf("%s has no exact version in requirements-test.txt", m[1])
		}
	}
	if !strings.Contains(read("test.sh"), "-r requirements-test.txt") {
		t.Error("test.sh does not install them")
	}
}
