package crash

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestNames: every name has a point in the sources, and every point a name.
func TestNames(t *testing.T) {
	var found []string
	call := regexp.MustCompile(`crash\.Point\("([^"]+)"\)`)
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range call.FindAllSubmatch(b, -1) {
			found = append(found, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range Names {
		if !slices.Contains(found, n) {
			t.Errorf("no point %q in the sources", n)
		}
	}
	for _, n := range found {
		if !slices.Contains(Names, n) {
			t.Errorf("the point %q is in no list", n)
		}
	}
}

func TestKills(t *testing.T) {
	if os.Getenv("CRASH_CHILD") != "" {
		Point("ring.release")
		Point("ring.claim")
		os.Stdout.WriteString("once\n")
		Point("ring.claim")
		os.Stdout.WriteString("twice\n")
		os.Exit(0)
	}
	run := func(point string) (string, error) {
		c := exec.Command(os.Args[0], "-test.run=TestKills$")
		c.Env = append(os.Environ(), "CRASH_CHILD=1", "RDSD_CRASH_POINT="+point)
		out, err := c.Output()
		return string(out), err
	}
	if out, err := run(""); err != nil || out != "once\ntwice\n" {
		t.Errorf("unarmed: %q %v", out, err)
	}
	for point, want := range map[string]string{"ring.claim": "", "ring.claim:2": "once\n"} {
		out, err := run(point)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || out != want {
			t.Errorf("%s: %q %v", point, out, err)
		}
	}
	for _, point := range []string{"nowhere", "ring.claim:0", "ring.claim:x"} {
		if _, err := run(point); err == nil {
			t.Errorf("%s was taken", point)
		}
	}
}

func BenchmarkPoint(b *testing.B) {
	for b.Loop() {
		Point("ring.release")
	}
}
