package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// compiled is what the Go tool says of a package.
type compiled struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
}

// checker checks the types of packages of the tree against what their imports compiled to.
type checker struct {
	root   string
	fset   *token.FileSet
	pkgs   map[string]compiled
	parsed map[string]*ast.File // by name
	from   types.Importer
}

// newChecker has everything compiled that the packages below dirs import.
func newChecker(root string, dirs []string) (*checker, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles"}
	cmd := exec.Command("go", append(args, dirs...)...)
	cmd.Dir = root
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, fault.String())
	}
	c := &checker{root: root, fset: token.NewFileSet(), pkgs: map[string]compiled{}, parsed: map[string]*ast.File{}}
	for d := json.NewDecoder(&out); d.More(); {
		var p compiled
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		c.pkgs[p.ImportPath] = p
	}
	c.from = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(c.pkgs[path].Export) })
	return c, nil
}

// check checks the package in dir with some of its files edited.
func (c *checker) check(dir string, edited map[string]string) error {
	var pkg compiled
	for _, p := range c.pkgs {
		if p.Dir == filepath.Join(c.root, dir) {
			pkg = p
		}
	}
	if len(pkg.GoFiles) == 0 || len(pkg.CgoFiles) > 0 {
		return fmt.Errorf("%s is no package, or one with files in C", dir)
	}
	var files []*ast.File
	for _, name := range pkg.GoFiles {
		rel := path.Join(dir, name)
		f, err := c.parsed[rel], error(nil)
		if text, ok := edited[rel]; ok {
			f, err = parser.ParseFile(c.fset, rel, text, parser.SkipObjectResolution)
		} else if f == nil {
			f, err = parser.ParseFile(c.fset, filepath.Join(c.root, rel), nil, parser.SkipObjectResolution)
			c.parsed[rel] = f
		}
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	// The first error ends it; the go tool would say the same.
	_, err := (&types.Config{Importer: c.from}).Check(pkg.ImportPath, c.fset, files, nil)
	return err
}

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
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	patches, err := readPatches(root)
	if err != nil {
		t.Fatal(err)
	}
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
