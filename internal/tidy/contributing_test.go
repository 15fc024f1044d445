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
	seen += checkCommands(t, spans, funcsOf(funcs))
	if seen < 20 {
		t.Errorf("only %d names were found: the document is not read", seen)
	}
}

// funcsOf are the functions of each directory's files.
func funcsOf(files map[string][]string) map[string][]string {
	dirs := map[string][]string{}
	for f, names := range files {
		dirs[path.Dir(f)] = append(dirs[path.Dir(f)], names...)
	}
	return dirs
}

// checkCommands holds the commands in a document's spans to the tree: a test that is asked
// for is one of a package that is named, each package has one that is asked for, a package
// whose tests are to write something anew has the flag for it, and a program is there. It
// returns how many it has looked at.
func checkCommands(t *testing.T, spans [][]string, funcs map[string][]string) (seen int) {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	update := updates(t)
	for _, m := range spans {
		for _, fault := range commandFaults(strings.Fields(m[1]), funcs, string(makefile), update) {
			t.Errorf("docs/contributing.md has the command %q: %s", m[1], fault)
		}
		if len(strings.Fields(m[1])) > 1 {
			seen++
		}
	}
	return seen
}

// updates are the packages whose tests have a flag -update.
func updates(t *testing.T) map[string]bool {
	dirs := map[string]bool{}
	for _, s := range sources(t) {
		if s.test && strings.Contains(string(s.text), `flag.Bool("update"`) {
			dirs[s.dir] = true
		}
	}
	return dirs
}

func commandFaults(words []string, funcs map[string][]string, makefile string, update map[string]bool) (faults []string) {
	if len(words) < 2 {
		return nil
	}
	if words[0] == "make" && !strings.Contains(makefile, "\n"+words[1]+":") {
		return []string{"the Makefile has no " + words[1]}
	}
	if words[0] != "go" || words[1] != "test" && words[1] != "run" {
		return nil
	}
	var dirs []string
	which := ""
	for i, w := range words {
		switch {
		case strings.HasPrefix(w, "./"):
			dirs = append(dirs, path.Clean(w))
		case w == "-run" && i+1 < len(words):
			which, _, _ = strings.Cut(strings.Trim(words[i+1], `"'`), "/")
		}
	}
	for _, d := range dirs {
		if len(funcs[d]) == 0 {
			faults = append(faults, "there is no package "+d)
		}
		if slices.Contains(words, "-update") && !update[d] {
			faults = append(faults, "the tests of "+d+" have no -update")
		}
	}
	if which == "" || words[1] != "test" {
		return faults
	}
	for _, name := range strings.Split(which, "|") {
		in := func(d string) bool {
			return slices.ContainsFunc(funcs[d], func(f string) bool { return strings.HasPrefix(f, name) })
		}
		if !slices.ContainsFunc(dirs, in) {
			faults = append(faults, "none of its packages has "+name)
		}
	}
	return faults
}

// TestCommandFaults: the check of commands finds what is wrong with one.
func TestCommandFaults(t *testing.T) {
	funcs := map[string][]string{"conn": {"TestScripts"}, "rds": {"TestPrograms"}, "rdsd": {"main"}}
	for command, n := range map[string]int{
		"go test ./conn": 0, "go test ./cone": 1, "go test ./conn -run TestScripts/refuse": 0, "go test ./conn -run TestPrograms": 1,
		`go test ./conn ./rds -run "TestScripts|TestPrograms" -update`: 1, "go test ./conn -update": 0, "go run ./rdsd docs docs/cli": 0,
		"go run ./nothing": 1, "make sim SEED=17": 0, "make peace": 1, "git log": 0,
	} {
		if faults := commandFaults(strings.Fields(command), funcs, "\nsim: ## x\n", map[string]bool{"conn": true}); len(faults) != n {
			t.Errorf("%s: %v", command, faults)
		}
	}
}
