package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Many edits of a package can be in one binary: each stands behind a number, beside what
// it replaces, and the environment says which number holds.
//
//	if n < 3 && s.ok {     // as it is
//	if (mutOn(7) && (n <= 3) || !mutOn(7) && (n < 3)) && s.ok {   // with the edge moved
//
// What the edit says is text as it stands in the tree, without numbers, for no two edits
// hold at once. What it replaces has the numbers of the edits within.

//go:embed testdata/switch.go.txt
var switchText string

// numbered is a package with edits behind numbers.
type numbered struct {
	dir  string
	text map[string]string // its files with edits, and the one that reads the environment
	in   []site            // the edit of number n is in[n-1]
	out  []site            // edits that cannot be put behind a number: of what is constant, mostly
}

// numberer puts edits behind numbers.
type numberer struct {
	dir     string
	pkg     *types.Package
	types   map[[2]int]map[string]types.Type // of expressions, by their bytes and file
	alias   []types.Type                     // types that the text names: mutT1 and so on
	sites   []site
	dropped []bool
}

// numberAll puts edits of the package in dir behind numbers, as many as it can.
func numberAll(c *checker, dir string, sites []site) (*numbered, error) {
	n := &numberer{dir: dir, sites: sites, dropped: make([]bool, len(sites)), types: map[[2]int]map[string]types.Type{}}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	pkg, err := c.checkWith(&types.Config{}, dir, nil, info)
	if err != nil {
		return nil, err
	}
	n.pkg = pkg
	for e, tv := range info.Types {
		at, end := c.fset.Position(e.Pos()), c.fset.Position(e.End())
		key := [2]int{at.Offset, end.Offset}
		if n.types[key] == nil {
			n.types[key] = map[string]types.Type{}
		}
		n.types[key][path.Join(dir, filepath.Base(at.Filename))] = tv.Type
	}
	for i, s := range sites {
		n.dropped[i] = s.form == nowhere
	}
	for {
		text, err := n.write(c.root)
		if err != nil {
			return nil, err
		}
		fewer, err := n.dropFaulty(c, text)
		if err != nil {
			return nil, err
		}
		if !fewer {
			return n.result(text), nil
		}
	}
}

// result numbers what is left from 1 on, as write did.
func (n *numberer) result(text map[string]string) *numbered {
	r := &numbered{dir: n.dir, text: text}
	for i, s := range n.sites {
		if n.dropped[i] {
			r.out = append(r.out, s)
		} else {
			r.in = append(r.in, s)
		}
	}
	return r
}

// write returns the files of the package with every edit that is not dropped.
func (n *numberer) write(root string) (map[string]string, error) {
	n.alias = nil
	files := map[string][]int{} // edits by file, the outer before those within
	for i, s := range n.sites {
		if !n.dropped[i] {
			files[s.file] = append(files[s.file], i)
		}
	}
	text := map[string]string{}
	for file, l := range files {
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(l, func(a, b int) int {
			x, y := n.sites[a].node, n.sites[b].node
			if x[0] != y[0] {
				return x[0] - y[0]
			}
			return y[1] - x[1]
		})
		text[file] = n.span(string(src), 0, len(src), l)
	}
	text[path.Join(n.dir, "mutate_switch.go")] = n.switchFile()
	return text, nil
}

// span writes the bytes [from, to) of src with the edits of l, all of which are within.
func (n *numberer) span(src string, from, to int, l []int) string {
	var b strings.Builder
	for len(l) > 0 {
		first := l[0]
		s := n.sites[first]
		rest := 1
		for rest < len(l) && n.sites[l[rest]].node[0] < s.node[1] {
			rest++
		}
		b.WriteString(src[from:s.node[0]])
		b.WriteString(n.edit(src, first, n.span(src, s.node[0], s.node[1], l[1:rest])))
		from, l = s.node[1], l[rest:]
	}
	b.WriteString(src[from:to])
	return b.String()
}

// number is the number of an edit: of those that are not dropped.
func (n *numberer) number(i int) int {
	k := 1
	for _, gone := range n.dropped[:i] {
		if !gone {
			k++
		}
	}
	return k
}

// edit writes the edit behind its number, with was where it does not hold. Marks around
// it tell whose it is when it does not compile.
func (n *numberer) edit(src string, i int, was string) string {
	s := n.sites[i]
	now := src[s.node[0]:s.from] + s.text + src[s.to:s.node[1]]
	on := fmt.Sprintf("mutOn(%d)", n.number(i))
	text := ""
	switch s.form {
	case action:
		text = "if !" + on + " { " + was + " }"
	case header:
		text = "func() { if !" + on + " { " + was + " } }()"
	case truth:
		text = "(" + on + " && (" + now + ") || !" + on + " && (" + was + "))"
	case value:
		text = "(func() " + n.typeName(s) + " { if " + on + " { return " + now + " }; return " + was + " }())"
	}
	return fmt.Sprintf(" /*<%d*/%s/*>%d*/", i, text, i)
}

// typeName names the type of an expression: by an alias, for the file may not import
// what it takes.
func (n *numberer) typeName(s site) string {
	t := n.types[s.node][s.file]
	for i, have := range n.alias {
		if types.Identical(have, t) {
			return "mutT" + strconv.Itoa(i+1)
		}
	}
	if !n.canName(t) {
		return "mutNoType" // which is not there, so that the edit is dropped
	}
	n.alias = append(n.alias, t)
	return "mutT" + strconv.Itoa(len(n.alias))
}

// canName reports whether a declaration of the package can name t.
func (n *numberer) canName(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.Basic:
		return t.Info()&types.IsUntyped == 0 && t.Kind() != types.Invalid
	case *types.Named:
		o := t.Obj()
		if t.TypeArgs().Len() > 0 || o.Pkg() == nil {
			return o.Pkg() == nil
		}
		return o.Parent() == o.Pkg().Scope() && (o.Exported() || o.Pkg() == n.pkg)
	}
	return false
}

// switchFile is the file that reads the environment and declares the aliases.
func (n *numberer) switchFile() string {
	imports, decls := "", ""
	names := map[string]string{}
	in := func(p *types.Package) string {
		if p == n.pkg {
			return ""
		}
		if names[p.Path()] == "" {
			names[p.Path()] = "mutP" + strconv.Itoa(len(names))
			imports += "import " + names[p.Path()] + " " + strconv.Quote(p.Path()) + "\n"
		}
		return names[p.Path()]
	}
	for i, t := range n.alias {
		decls += fmt.Sprintf("type mutT%d = %s\n", i+1, types.TypeString(t, in))
	}
	return "package " + n.pkg.Name() + "\n\n" + imports + switchText + decls
}

// dropFaulty drops the edits that do not compile behind a number. It reports whether
// there were any.
func (n *numberer) dropFaulty(c *checker, text map[string]string) (bool, error) {
	fewer := false
	var other error
	conf := &types.Config{Error: func(err error) {
		e := err.(types.Error)
		at := c.fset.Position(e.Pos)
		i := markedAt(text[at.Filename], at.Offset)
		if i < 0 { // an edit's type does not fit what stands around it
			i = markedAfter(text[at.Filename], at.Offset)
		}
		if i >= 0 {
			n.dropped[i], fewer = true, true
		} else if other == nil {
			other = fmt.Errorf("%s: %s", at, e.Msg)
		}
	}}
	_, err := c.checkWith(conf, n.dir, text, nil)
	if err != nil && !fewer {
		if other != nil {
			err = other
		}
		return false, fmt.Errorf("%s with its edits: %w", n.dir, err)
	}
	return fewer, nil
}

// markedAt is the innermost edit whose marks stand around a byte of text, -1 if none is.
func markedAt(text string, at int) int {
	var open []int
	for rest := text[:min(at, len(text))]; ; {
		i := strings.Index(rest, "/*")
		if i < 0 || i+3 > len(rest) {
			break
		}
		kind := rest[i+2]
		digits, after, ok := strings.Cut(rest[i+3:], "*/")
		if id, err := strconv.Atoi(digits); ok && err == nil && kind == '<' {
			open = append(open, id)
		} else if ok && err == nil && kind == '>' {
			open = open[:len(open)-1]
		}
		if rest = after; !ok {
			break
		}
	}
	if len(open) == 0 {
		return -1
	}
	return open[len(open)-1]
}

// markedAfter is the first edit whose marks begin behind a byte of text, -1 if none does.
func markedAfter(text string, at int) int {
	_, rest, ok := strings.Cut(text[min(at, len(text)):], "/*<")
	digits, _, _ := strings.Cut(rest, "*/")
	if i, err := strconv.Atoi(digits); ok && err == nil {
		return i
	}
	return -1
}
