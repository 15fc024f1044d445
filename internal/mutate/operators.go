package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// site is one edit that could be made: the bytes [from, to) of file become text.
type site struct {
	id       string // file, function, operator and number within them: it outlives other edits
	file     string
	line     int
	from, to int
	text     string
	was      string
	class    string
	node     [2]int // the bytes of the expression or statement that the edit is in
	form     form
}

// form is what an edit stands in: how it can be put behind a number (hooks.go).
type form int

const (
	value   form = iota // an expression of any type
	truth               // an expression that is true or false
	action              // a statement
	header              // a statement in front of a condition, where no block may stand
	nowhere             // a statement that can only be what it is: its edit does not compile
)

// weights say how often each class of edit is drawn, in proportion: about as often
// as reviews find them, not as often as a program text offers them.
var weights = map[string]int{
	"edge":       18, // < for <=, > for >=
	"off-by-one": 10, // a literal one too large
	"sign":       6,  // + for -
	"equal":      8,  // == for !=
	"logic":      8,  // && for ||
	"skip":       16, // a check that is not made
	"call":       13, // a call left out: a wake, a timer, a release
	"assign":     12, // an assignment left out
	"error":      6,  // an error swallowed
	"bound":      4,  // min for max
	"flag":       4,  // true for false
	"count":      2,  // a statistic not counted
}

// sites finds every edit in the Go files of a directory that are built here.
func sites(root, dir string) ([]site, error) {
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []site
	for _, name := range names {
		base := filepath.Base(name)
		if strings.HasSuffix(base, "_test.go") || strings.HasSuffix(base, ".pb.go") || strings.HasSuffix(base, "_other.go") || base == "doc.go" {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return nil, err
		}
		l, err := fileSites(rel, src)
		if err != nil {
			return nil, err
		}
		all = append(all, l...)
	}
	return all, nil
}

// finder collects the sites of one file.
type finder struct {
	file string
	src  []byte
	set  *token.FileSet
	fn   string            // function being walked
	nth  map[string]int    // by function and class
	head map[ast.Node]form // statements where no block may stand
	out  []site
}

func fileSites(name string, src []byte) ([]site, error) {
	f := &finder{file: name, src: src, set: token.NewFileSet(), nth: map[string]int{}, head: map[ast.Node]form{}}
	tree, err := parser.ParseFile(f.set, name, src, 0)
	if err != nil {
		return nil, err
	}
	for _, d := range tree.Decls {
		fd, ok := d.(*ast.FuncDecl)
		if !ok || fd.Body == nil || onlyForPeople[fd.Name.Name] {
			continue
		}
		f.fn = funcName(fd)
		f.block(fd.Body)
	}
	return f.out, nil
}

// onlyForPeople are functions whose results no program acts on.
var onlyForPeople = map[string]bool{"String": true, "Error": true, "GoString": true, "LogValue": true}

func funcName(fd *ast.FuncDecl) string {
	if fd.Recv == nil || len(fd.Recv.List) == 0 {
		return fd.Name.Name
	}
	t := fd.Recv.List[0].Type
	if s, ok := t.(*ast.StarExpr); ok {
		t = s.X
	}
	if i, ok := t.(*ast.IndexExpr); ok {
		t = i.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + fd.Name.Name
	}
	return fd.Name.Name
}

func (f *finder) offset(p token.Pos) int { return f.set.Position(p).Offset }

// add notes the edit of the bytes [from, to) within n.
func (f *finder) add(class string, from, to token.Pos, text string, n ast.Node, form form) {
	a, b := f.offset(from), f.offset(to)
	key := f.fn + " " + class
	f.nth[key]++
	f.out = append(f.out, site{
		id:   fmt.Sprintf("%s:%s:%s:%d", f.file, f.fn, class, f.nth[key]),
		file: f.file, line: f.set.Position(from).Line, from: a, to: b, text: text, was: string(f.src[a:b]), class: class,
		node: [2]int{f.offset(n.Pos()), f.offset(n.End())}, form: form,
	})
}

func (f *finder) block(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ExprStmt:
			return f.statement(n)
		case *ast.AssignStmt:
			f.assignment(n)
		case *ast.IncDecStmt:
			f.incDec(n)
		case *ast.IfStmt:
			f.header(n.Init)
			f.skip(n)
		case *ast.ForStmt:
			f.header(n.Init)
			f.head[n.Post] = nowhere // a loop that does not go on would only hang
		case *ast.CommClause:
			f.head[n.Comm] = nowhere
		case *ast.SwitchStmt:
			f.header(n.Init)
		case *ast.ReturnStmt:
			f.swallow(n)
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "min" || id.Name == "max") {
				f.add("bound", id.Pos(), id.End(), map[string]string{"min": "max", "max": "min"}[id.Name], n, value)
			}
			return !forPeople(n)
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				f.add("flag", n.Pos(), n.End(), strconv.FormatBool(n.Name == "false"), n, truth)
			}
		}
		return true
	})
}

// statement leaves a call out. It reports whether to look inside.
func (f *finder) statement(n *ast.ExprStmt) bool {
	call, ok := n.X.(*ast.CallExpr)
	if !ok || forPeople(call) {
		return false
	}
	class := "call"
	if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Add" && isStatistic(s.X) {
		class = "count"
	}
	f.wrap(class, n)
	return true
}

// header notes a statement in front of a condition.
func (f *finder) header(s ast.Stmt) {
	if s != nil {
		f.head[s] = header
	}
}

// wrap keeps a statement in the text, so that its imports and variables stay used,
// but never runs it.
func (f *finder) wrap(class string, n ast.Node) {
	text := "if false { " + string(f.src[f.offset(n.Pos()):f.offset(n.End())]) + " }"
	form := action
	if at, ok := f.head[n]; ok {
		form = at
	}
	if form == header {
		text = "func() { " + text + " }()"
	}
	f.add(class, n.Pos(), n.End(), text, n, form)
}

func (f *finder) assignment(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE || len(n.Lhs) == 0 {
		return
	}
	if id, ok := n.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
		return
	}
	if isStatistic(n.Lhs[0]) {
		f.wrap("count", n)
		return
	}
	f.wrap("assign", n)
}

func (f *finder) incDec(n *ast.IncDecStmt) {
	if isStatistic(n.X) {
		f.wrap("count", n)
		return
	}
	f.wrap("assign", n)
}

func (f *finder) skip(n *ast.IfStmt) {
	cond := string(f.src[f.offset(n.Cond.Pos()):f.offset(n.Cond.End())])
	if n.Else == nil {
		f.add("skip", n.Cond.Pos(), n.Cond.End(), "false && ("+cond+")", n.Cond, truth)
		return
	}
	f.add("skip", n.Cond.Pos(), n.Cond.End(), "!("+cond+")", n.Cond, truth)
}

func (f *finder) swallow(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	name := ""
	switch e := last.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	case *ast.CallExpr:
		if s, ok := e.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Errorf" || s.Sel.Name == "With") {
			name = "err"
		}
	}
	if name == "err" || strings.HasPrefix(name, "err") && len(name) > 3 || strings.HasPrefix(name, "Err") {
		f.add("error", last.Pos(), last.End(), "nil", last, value)
	}
}

// operator is what stands in the place of another.
type operator struct {
	text, class string
}

func (o operator) form() form {
	if o.class == "sign" {
		return value
	}
	return truth
}

var others = map[token.Token]operator{
	token.LSS:  {"<=", "edge"},
	token.LEQ:  {"<", "edge"},
	token.GTR:  {">=", "edge"},
	token.GEQ:  {">", "edge"},
	token.EQL:  {"!=", "equal"},
	token.NEQ:  {"==", "equal"},
	token.LAND: {"||", "logic"},
	token.LOR:  {"&&", "logic"},
	token.ADD:  {"-", "sign"},
	token.SUB:  {"+", "sign"},
}

func (f *finder) binary(n *ast.BinaryExpr) {
	if o, ok := others[n.Op]; ok && !isText(n.X) && !isText(n.Y) {
		f.add(o.class, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), o.text, n, o.form())
	}
	for _, e := range []ast.Expr{n.X, n.Y} {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.INT {
			f.add("off-by-one", l.Pos(), l.End(), "("+l.Value+"+1)", l, value)
		}
	}
}

func isText(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING
}

// isStatistic recognizes what is counted for people only, by the house's names.
func isStatistic(e ast.Expr) bool {
	for {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		switch s.Sel.Name {
		case "ctr", "count", "Stats", "stats", "counters", "Counters":
			return true
		}
		if id, ok := s.X.(*ast.Ident); ok && (id.Name == "ctr" || id.Name == "count") {
			return true
		}
		e = s.X
	}
}

// forPeople recognizes calls that only say something: logs, panics, error texts.
func forPeople(c *ast.CallExpr) bool {
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		return fun.Name == "panic" || fun.Name == "print" || fun.Name == "println"
	case *ast.SelectorExpr:
		switch fun.Sel.Name {
		case "Debug", "Info", "Warn", "Error", "Log", "LogAttrs":
			return isLog(fun.X)
		case "Errorf", "Sprintf":
			return isNamed(fun.X, "fmt")
		case "With":
			return isNamed(fun.X, "rdserr")
		case "Point":
			return isNamed(fun.X, "crash")
		}
	}
	return false
}

func isNamed(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

func isLog(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return strings.Contains(strings.ToLower(e.Name), "log")
	case *ast.SelectorExpr:
		return strings.Contains(strings.ToLower(e.Sel.Name), "log")
	}
	return false
}
