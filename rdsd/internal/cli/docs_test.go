package cli

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const docsDir = "../../../docs/cli"

// TestDocsCurrent: docs/cli is what the commands say today.
func TestDocsCurrent(t *testing.T) {
	fresh := t.TempDir()
	if _, err := writeDocs((&app{}).root(), fresh); err != nil {
		t.Fatal(err)
	}
	pages := 0
	err := filepath.WalkDir(fresh, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		pages++
		rel, _ := filepath.Rel(fresh, path)
		want, _ := os.ReadFile(path)
		got, err := os.ReadFile(filepath.Join(docsDir, rel))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/cli/%s is not current (%v); run: go run ./rdsd docs docs/cli", rel, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	filepath.WalkDir(docsDir, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(docsDir, path)
		if err == nil && !d.IsDir() && rel != "rds-tools.md" {
			if _, err := os.Stat(filepath.Join(fresh, rel)); err != nil {
				t.Errorf("docs/cli/%s describes no command; remove it", rel)
			}
		}
		return nil
	})
	if pages < 40 {
		t.Errorf("only %d pages", pages)
	}
}

// TestEveryCommandIsDescribed: a sentence, flags with help, no stray capitals.
func TestEveryCommandIsDescribed(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" {
			t.Errorf("%s has no short description", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).root())
	for _, name := range strings.Fields("serve demo send recv ping stress info status peers sockets queue counters congestion top errors check bugreport doctor config cancel version completion") {
		root := (&app{}).root()
		root.InitDefaultCompletionCmd()
		if c, _, err := root.Find([]string{name}); err != nil || c.Name() != name {
			t.Errorf("rdsd %s is missing: %v", name, err)
		}
	}
}

// TestExitCodesAreUnique: the table is the interface.
func TestExitCodesAreUnique(t *testing.T) {
	seen := map[int]string{}
	for _, e := range exitCodes {
		if seen[e.code] != "" {
			t.Errorf("exit code %d means both %s and %s", e.code, seen[e.code], e.name)
		}
		seen[e.code] = e.name
	}
	for errno, code := range errnoExit {
		if seen[code] == "" {
			t.Errorf("errno %d has exit code %d, which is not in the table", errno, code)
		}
	}
	if got := exitOf(context.Canceled); got != exitInterrupted {
		t.Errorf("an interrupt exits with %d", got)
	}
}
