package tidy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Codes of promises, in parentheses in a comment, and where docs/testing.md explains one.
var (
	inParens = regexp.MustCompile(`\(([DBMRV][0-9]{1,2}\b[^()]*)\)`)
	aCode    = regexp.MustCompile(`\b[DBMRV][0-9]{1,2}\b`)
	codeRow  = regexp.MustCompile(`(?m)^\| ([DBMRV][0-9]{1,2})\b`)
)

// TestCodesAreExplained: a code such as D2 stands in a comment only if docs/testing.md says
// what it promises.
func TestCodesAreExplained(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(root(t), "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range codeRow.FindAllStringSubmatch(string(doc), -1) {
		known[m[1]] = true
	}
	if len(known) < 20 {
		t.Fatalf("docs/testing.md explains %d codes: its tables are not read", len(known))
	}
	for _, s := range sources(t) {
		for _, g := range s.ast.Comments {
			for _, m := range inParens.FindAllStringSubmatch(g.Text(), -1) {
				for _, code := range aCode.FindAllString(m[1], -1) {
					if !known[code] {
						t.Errorf("%s: %s is a code that docs/testing.md does not explain", s.fset.Position(g.Pos()), code)
					}
				}
			}
		}
	}
}
