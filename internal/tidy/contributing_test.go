package tidy

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A span of code in a document, and what in it is a path of the tree or a test.
var (
	aSpan = regexp.MustCompile("`([^`]+)`")
	aPath = regexp.MustCompile(`^[a-zA-Z0-9_.]+(/[a-zA-Z0-9_.*]+)*$`)
	aTest = regexp.MustCompile(`\bTest[A-Z]\w+`)
)

// named are words in code spans of docs/contributing.md that look like files and are not.
var named = []string{"NAME.txtar", "policy_NAME.go"}

// TestContributingNamesWhatIsThere holds docs/contributing.md to the tree: whoever adds
// something is sent to files, directories and tests that exist, and functions that are
// named beside a file are in it.
func TestContributingNamesWhatIsThere(t *testing.T) {
	dir := root(t)
	doc, err := os.ReadFile(filepath.Join(dir, "docs", "contributing.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	funcs := map[string][]string{} // by file
	var files []string
	files = append(files, tracked(t)...)
	for _, s := range sources(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				tests[f.Name.Name] = true
				funcs[s.path] = append(funcs[s.path], f.Name.Name)
			}
		}
	}
	there := func(p string) bool {
		return slices.ContainsFunc(files, func(f string) bool {
			if ok, _ := path.Match(p, f); ok {
				return true
			}
			return strings.HasPrefix(f, strings.TrimSuffix(p, "/")+"/")
		})
	}
	spans := aSpan.FindAllStringSubmatch(string(doc), -1)
	seen := 0
	for _, m := range spans {
		for _, name := range aTest.FindAllString(m[1], -1) {
			if seen++; !tests[name] {
				t.Errorf("docs/contributing.md names %s, which is no test", name)
			}
		}
		last := path.Base(m[1])
		isFile := strings.Contains(last, ".") && strings.Contains(m[1], "/")
		if !aPath.MatchString(m[1]) || !isFile || slices.ContainsFunc(named, func(n string) bool { return strings.HasSuffix(m[1], n) }) {
			continue
		}
		if seen++; !there(m[1]) {
			t.Errorf("docs/contributing.md names %s, which is not there", m[1])
		}
	}
	// "`f`, `g` in `dir/file.go`": the functions are in that file.
	for _, m := range regexp.MustCompile("((?:`[a-zA-Z]+`(?:, | and )?)+) in `([a-z/_]+\\.go)`").FindAllStringSubmatch(string(doc), -1) {
		for _, f := range aSpan.FindAllStringSubmatch(m[1], -1) {
			if seen++; !slices.Contains(funcs[m[2]], f[1]) {
				t.Errorf("docs/contributing.md looks for %s in %s, where it is not", f[1], m[2])
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d names were found: the document is not read", seen)
	}
}
