package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// checkPatch checks every package that p changes.
func (c *checker) checkPatch(p *patch) error {
	edited, err := p.apply(c.root)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for file := range edited {
		dir := path.Dir(file)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		if err := c.check(dir, edited); err != nil {
			return fmt.Errorf("rule %s does not compile: %w", p.name, err)
		}
	}
	return nil
}

// TestRulesCompile: with each patch the packages that it changes are correct Go. A world
// that cannot be built looks as if it had noticed nothing, and is found out only by who
// breaks all rules.
func TestRulesCompile(t *testing.T) {
	root, patches := rulesOfTree(t)
	dirs := map[string]bool{}
	for _, p := range patches {
		for file := range p.hunks {
			dirs["./"+path.Dir(file)] = true
		}
	}
	var list []string
	for d := range dirs {
		list = append(list, d)
	}
	c, err := newChecker(root, list)
	if err != nil {
		t.Fatal(err)
	}
	for d := range dirs {
		if err := c.check(path.Clean(d), nil); err != nil {
			t.Fatalf("without a patch: %v", err)
		}
	}
	for _, p := range patches {
		if err := c.checkPatch(p); err != nil {
			t.Error(err)
		}
	}
	// The check itself: what is not used, not there and of another type is found.
	for _, line := range []string{"\tunused := 1\n", "\tnotThere()\n", "\tvar _ int = \"\"\n", "\tif {\n"} {
		text, err := os.ReadFile(filepath.Join(root, "conn/may.go"))
		if err != nil {
			t.Fatal(err)
		}
		broken := string(text) + "\nfunc broken() {\n" + line + "}\n"
		if err := c.check("conn", map[string]string{"conn/may.go": broken}); err == nil {
			t.Errorf("%q is taken for correct", strings.TrimSpace(line))
		}
	}
}
