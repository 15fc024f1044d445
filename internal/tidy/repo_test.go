package tidy

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/rdsd/rdsd"

// root is the top of the checkout.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || !bytes.HasPrefix(b, []byte("module "+module+"\n")) {
		t.Fatalf("%s is not the top of the module: %v", dir, err)
	}
	return dir
}

// tracked lists the files git knows, with slashes, relative to the root. In an
// unpacked archive it lists every file that is there.
func tracked(t *testing.T) (files []string) {
	dir := root(t)
	if out, err := exec.Command("git", "-C", dir, "ls-files", "-z").Output(); err == nil {
		for f := range strings.SplitSeq(string(out), "\x00") {
			if f == "" {
				continue
			}
			if s, err := os.Lstat(filepath.Join(dir, f)); err == nil && s.Mode().IsRegular() { // not one just deleted
				files = append(files, f)
			}
		}
		return files
	}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && p != dir && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "out" || name == "bin") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, p)
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// source is one Go file of the module.
type source struct {
	path      string // relative to the root
	dir       string // of the package; "." is the root
	text      []byte
	test      bool // _test.go
	generated bool
	built     bool // its build constraints hold here
	ast       *ast.File
	fset      *token.FileSet
}

// sources parses the tracked Go files of this module; other modules
// (tools/, with a go.mod of their own) are left out.
func sources(t *testing.T) (list []*source) {
	dir := root(t)
	files := tracked(t)
	var other []string
	for _, f := range files {
		if path.Base(f) == "go.mod" && f != "go.mod" {
			other = append(other, path.Dir(f)+"/")
		}
	}
	for _, f := range files {
		if !strings.HasSuffix(f, ".go") || slices.ContainsFunc(other, func(o string) bool { return strings.HasPrefix(f, o) }) || strings.Contains("/"+f, "/testdata/") {
			continue
		}
		full := filepath.Join(dir, filepath.FromSlash(f))
		text, err := os.ReadFile(full)
		if err != nil {
			t.Fatal(err)
		}
		s := &source{path: f, dir: path.Dir(f), text: text, test: strings.HasSuffix(f, "_test.go"), fset: token.NewFileSet()}
		if s.ast, err = parser.ParseFile(s.fset, f, text, parser.ParseComments); err != nil {
			t.Errorf("%v", err)
			continue
		}
		s.generated = ast.IsGenerated(s.ast)
		if s.built, err = build.Default.MatchFile(filepath.Dir(full), filepath.Base(full)); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	if len(list) < 50 {
		t.Fatalf("only %d Go files: this is not the whole module", len(list))
	}
	return list
}
