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
	"slices"
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

// check checks the package in dir with some of its files edited. The first error ends
// it; the go tool would say the same.
func (c *checker) check(dir string, edited map[string]string) error {
	_, err := c.checkWith(&types.Config{}, dir, edited, nil)
	return err
}

// checkWith checks the package in dir with some of its files edited, or new. Where info is
// not nil it is filled.
func (c *checker) checkWith(conf *types.Config, dir string, edited map[string]string, info *types.Info) (*types.Package, error) {
	var pkg compiled
	for _, p := range c.pkgs {
		if p.Dir == filepath.Join(c.root, dir) {
			pkg = p
		}
	}
	if len(pkg.GoFiles) == 0 || len(pkg.CgoFiles) > 0 {
		return nil, fmt.Errorf("%s is no package, or one with files in C", dir)
	}
	var files []*ast.File
	names := slices.Clone(pkg.GoFiles)
	for rel := range edited {
		if path.Dir(rel) == dir && !slices.Contains(names, path.Base(rel)) {
			names = append(names, path.Base(rel))
		}
	}
	for _, name := range names {
		rel := path.Join(dir, name)
		f, err := c.parsed[rel], error(nil)
		if text, ok := edited[rel]; ok {
			f, err = parser.ParseFile(c.fset, rel, text, parser.SkipObjectResolution)
		} else if f == nil {
			f, err = parser.ParseFile(c.fset, filepath.Join(c.root, rel), nil, parser.SkipObjectResolution)
			c.parsed[rel] = f
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	conf.Importer = c.from
	return conf.Check(pkg.ImportPath, c.fset, files, info)
}
