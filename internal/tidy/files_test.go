package tidy

import (
	"bytes"
	"go/format"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxLines = 600

func TestGofmt(t *testing.T) {
	for _, s := range sources(t) {
		out, err := format.Source(s.text)
		if err != nil {
			t.Errorf("%s: %v", s.path, err)
		} else if !bytes.Equal(out, s.text) {
			t.Errorf("%s is not gofmt'ed", s.path)
		}
	}
}

func TestFileLength(t *testing.T) {
	for _, s := range sources(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines && !s.generated {
			t.Errorf("%s has %d lines; %d are enough for one concept", s.path, n, maxLines)
		}
	}
}

// TestDoc: every package says in doc.go what it owns and what to read first; a
// program says it in its main file. No other file has a package comment, or
// godoc would print both.
func TestDoc(t *testing.T) {
	type pkg struct {
		main, onlyTests bool
		docs            []string
	}
	pkgs := map[string]*pkg{}
	for _, s := range sources(t) {
		p := pkgs[s.dir]
		if p == nil {
			p = &pkg{onlyTests: true}
			pkgs[s.dir] = p
		}
		if s.test || s.generated {
			continue
		}
		p.onlyTests = false
		p.main = p.main || s.ast.Name.Name == "main"
		if s.ast.Doc != nil {
			p.docs = append(p.docs, path.Base(s.path))
		}
	}
	for dir, p := range pkgs {
		switch {
		case p.onlyTests:
		case p.main && len(p.docs) != 1:
			t.Errorf("%s: a program has one package comment, found in %v", dir, p.docs)
		case !p.main && !slices.Equal(p.docs, []string{"doc.go"}):
			t.Errorf("%s: the package comment stands in doc.go alone, found in %v", dir, p.docs)
		}
	}
}

// unfinished are marks of work left undone. They are put together here so that
// this file has none.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)

func TestNoUnfinishedMarks(t *testing.T) {
	for _, s := range sources(t) {
		if m := unfinished.FindIndex(s.text); m != nil && !s.generated {
			t.Errorf("%s:%d: %s", s.path, 1+bytes.Count(s.text[:m[0]], []byte("\n")), s.text[m[0]:m[1]])
		}
	}
}

// TestNoPathsOfThisMachine: what is tracked names neither the checkout nor what
// lies beside it nor the home directory of whoever built it.
func TestNoPathsOfThisMachine(t *testing.T) {
	dir := root(t)
	paths := []string{dir}
	if parent := filepath.Dir(dir); len(parent) > 1 && !slices.Contains([]string{
		"/home", "/tmp", "/src", "/usr", "/opt", "/mnt", "/srv", "/var", "/root", "/go", "/app", "/build", "/builds"}, parent) {
		paths = append(paths, parent)
	}
	if home, err := os.UserHomeDir(); err == nil && strings.Count(home, "/") > 1 {
		paths = append(paths, home)
	}
	for i, p := range paths {
		paths[i] = regexp.QuoteMeta(filepath.ToSlash(p))
	}
	here := regexp.MustCompile(`(^|[^\w./-])(` + strings.Join(paths, "|") + `)(/|\b)`)
	for _, f := range tracked(t) {
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f)))
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(b) {
			continue
		}
		if m := here.FindIndex(b); m != nil {
			t.Errorf("%s:%d: %q is a path of this machine", f, 1+bytes.Count(b[:m[0]], []byte("\n")), b[m[0]:m[1]])
		}
	}
}
