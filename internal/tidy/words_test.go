package tidy

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// explained are the rooms that hold the rules of the protocols and the ways to the wire,
// with the least share of comment lines in the bodies of their long functions, in per cent.
//
// A name says what a line does; why it stands there, before the next one, only a comment
// can: a rule of the kernel's, an order, a race, a trick. x/net/quic has one line in seven,
// etcd's raft one in five. The shares are what the rooms have now less a little, so that
// one function more may be plain but a room does not fall silent: conn, with the oldest
// rules, has most of them; what only lays bytes out has few.
var explained = map[string]float64{
	"conn":          14,
	"rds":           8,
	"cong":          9,
	"roce":          4,
	"roce/cm":       6,
	"rtrs":          10,
	"rnbd":          9,
	"wire/rtrs":     6,
	"transport":     8,
	"transport/tcp": 10,
	"transport/sim": 4,
	"shm":           11,
	"sdk/go":        8,
	"blk":           9,
	"blk/nbd":       7,
}

const (
	longFunc = 25 // lines from func to brace, of a function that is long
	// No function of longBody lines is without a comment of its own line: so much cannot be
	// plain.
	longBody = 30
)

// ownLines are the lines of f's body that are a comment and nothing else.
func ownLines(s *source, f *ast.FuncDecl) (n int) {
	lines := strings.Split(string(s.text), "\n")
	for _, g := range s.ast.Comments {
		if g.Pos() < f.Body.Lbrace || g.End() > f.Body.Rbrace {
			continue
		}
		for _, c := range g.List {
			if strings.HasPrefix(strings.TrimSpace(lines[s.fset.Position(c.Pos()).Line-1]), "//") {
				n++
			}
		}
	}
	return n
}

// TestBodiesSayWhy measures comments inside long functions.
func TestBodiesSayWhy(t *testing.T) {
	type sum struct{ lines, comments int }
	sums := map[string]*sum{}
	for _, s := range sources(t) {
		if _, ok := explained[s.dir]; !ok || s.test || s.generated {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			first, last := s.fset.Position(f.Pos()).Line, s.fset.Position(f.End()).Line
			if last-first+1 <= longFunc {
				continue
			}
			n, body := ownLines(s, f), last-s.fset.Position(f.Body.Lbrace).Line-1
			if n == 0 && body >= longBody {
				t.Errorf("%s:%d: %s has %d lines and no word why they stand there", s.path, first, f.Name.Name, body)
			}
			k := sums[s.dir]
			if k == nil {
				k = &sum{}
				sums[s.dir] = k
			}
			k.lines, k.comments = k.lines+body, k.comments+n
		}
	}
	for dir, least := range explained {
		k := sums[dir]
		if k == nil {
			t.Errorf("%s has no long function: it need not stand in this table", dir)
			continue
		}
		if share := 100 * float64(k.comments) / float64(k.lines); share < least {
			t.Errorf("%s: %.1f%% of the %d lines in long functions are comments, want %.0f%%", dir, share, k.lines, least)
		} else {
			t.Logf("%s: %.1f%% of %d", dir, share, k.lines)
		}
	}
}

// boolParams are the places of f's parameters that are of type bool.
func boolParams(f *ast.FuncDecl) (at []int) {
	i := 0
	for _, p := range f.Type.Params.List {
		n := max(1, len(p.Names))
		if id, ok := p.Type.(*ast.Ident); ok && id.Name == "bool" {
			for k := range n {
				at = append(at, i+k)
			}
		}
		i += n
	}
	return at
}

// TestNoBareBooleans: true and false say nothing at a call of a function that takes more
// than one of them: which of the two was meant? Functions are found by their name and the
// number of their arguments, without types: one that is named like another has to be called
// as well as it.
func TestNoBareBooleans(t *testing.T) {
	type key struct {
		name string
		args int
	}
	type decl struct {
		where string
		at    []int
	}
	list := sources(t)
	takes := map[key]decl{}
	for _, s := range list {
		if s.test || s.generated {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if at := boolParams(f); len(at) > 1 {
					takes[key{f.Name.Name, f.Type.Params.NumFields()}] = decl{s.path, at}
				}
			}
		}
	}
	for _, s := range list {
		if s.test || s.generated {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			d, ok := takes[key{name, len(call.Args)}]
			if !ok {
				return true
			}
			for _, i := range d.at {
				if id, ok := call.Args[i].(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
					t.Errorf("%s: a bare %s in a call of %s (%s), which takes more than one bool: name it", s.fset.Position(id.Pos()), id.Name, name, d.where)
				}
			}
			return true
		})
	}
}

// aNote is a doc comment that begins with a name and a colon instead of a sentence, or
// tells a result in that way.
var aNote = regexp.MustCompile(`^// [A-Za-z_][A-Za-z0-9_]*: |(?:^// |[.)] )(?:True|False|Neither): `)

// isTest reports whether name is that of a test, whose comment is a claim ("TestX: a link
// that ... ends with the reason") that no documentation shows.
func isTest(name string) bool {
	for _, p := range []string{"Test", "Fuzz", "Benchmark", "Example"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// docs calls f with the doc comment of every declaration, field and method of s, tests
// aside.
func docs(s *source, f func(*ast.CommentGroup)) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		var doc *ast.CommentGroup
		switch n := n.(type) {
		case *ast.FuncDecl:
			if s.test && n.Recv == nil && isTest(n.Name.Name) {
				return false
			}
			doc = n.Doc
		case *ast.GenDecl:
			doc = n.Doc
		case *ast.TypeSpec:
			doc = n.Doc
		case *ast.ValueSpec:
			doc = n.Doc
		case *ast.Field:
			doc = n.Doc
		}
		if doc != nil {
			f(doc)
		}
		return true
	})
}

// TestDocsAreSentences: a doc comment is a sentence about what it stands at ("Connected
// reports whether ..."), not a note behind the name ("Connected: there is a link").
func TestDocsAreSentences(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		docs(s, func(g *ast.CommentGroup) {
			var text strings.Builder
			for _, c := range g.List {
				text.WriteString(strings.TrimPrefix(c.Text, "//"))
			}
			if aNote.MatchString(g.List[0].Text) || aNote.MatchString(text.String()) {
				t.Errorf("%s: a note, not a sentence: %s", s.fset.Position(g.Pos()), g.List[0].Text)
			}
		})
	}
}
