package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const sample = `package p

func (s *T) F(n int) error {
	if n < 3 && s.ok {
		return errBad
	}
	s.ctr.Frames++
	s.n += n
	s.wake(true)
	s.wake(false)
	log.Info("n", "n", n+1)
	x := min(n, 5)
	for i := 0; i <= x; i++ {
	}
	if s.look(); x == n {
		s.a()
	} else {
		s.b()
	}
	return rdserr.With(errBad, "%d", n-1)
}
`

// Every kind of edit is found, once where it stands once, and nowhere else.
func TestSites(t *testing.T) {
	l, err := fileSites("p.go", []byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range l {
		got = append(got, s.class+": "+oneLine(s.was)+" -> "+oneLine(s.text))
	}
	want := []string{
		"skip: n < 3 && s.ok -> false && (n < 3 && s.ok)",
		"logic: && -> ||",
		"edge: < -> <=",
		"off-by-one: 3 -> (3+1)",
		"error: errBad -> nil",
		"count: s.ctr.Frames++ -> if false { s.ctr.Frames++ }",
		"assign: s.n += n -> if false { s.n += n }",
		"call: s.wake(true) -> if false { s.wake(true) }",
		"flag: true -> false",
		"call: s.wake(false) -> if false { s.wake(false) }",
		"flag: false -> true",
		"bound: min -> max",
		"edge: <= -> <",
		"assign: i++ -> if false { i++ }",
		"skip: x == n -> !(x == n)",
		"call: s.look() -> func() { if false { s.look() } }()",
		"equal: == -> !=",
		"call: s.a() -> if false { s.a() }",
		"call: s.b() -> if false { s.b() }",
		`error: rdserr.With(errBad, "%d", n-1) -> nil`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every edit leaves a file that still parses, and no two have the same id.
func TestEdits(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rooms {
		l, err := sites(root, r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(l) < 20 {
			t.Errorf("%s: only %d edits", r.dir, len(l))
		}
		seen := map[string]bool{}
		for i, s := range l {
			if seen[s.id] {
				t.Errorf("%s stands twice", s.id)
			}
			seen[s.id] = true
			if i%97 != 0 { // a sample: some ten thousand files take too long to parse
				continue
			}
			src, err := os.ReadFile(filepath.Join(root, s.file))
			if err != nil {
				t.Fatal(err)
			}
			edited := string(src[:s.from]) + s.text + string(src[s.to:])
			if _, err := parser.ParseFile(token.NewFileSet(), s.file, edited, 0); err != nil && s.class != "assign" {
				t.Errorf("%s: %v", s.id, err)
			}
		}
	}
}

// Each entry of the list of equivalent mutations names one that exists: code that
// moved takes its entry along.
func TestEquivalent(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	known, err := readEquivalent(filepath.Join(root, "internal/mutate/equivalent.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rooms {
		l, err := sites(root, r.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l {
			delete(known, s.id)
		}
	}
	for id := range known {
		t.Errorf("equivalent.txt: no mutation has the id %s any more", id)
	}
}
