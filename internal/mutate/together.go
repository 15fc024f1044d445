package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// brokenBy is the environment variable by which a world's test is told which rule to break.
const brokenBy = "RDSD_BROKEN_RULE"

// together is the tree with many rules that can be broken: each function that some
// patch changes stands there as it is and as the patch leaves it, and asks at its
// beginning which one is wanted. So one test of a world serves all its rules, where
// building one for each took most of the time.
type together struct {
	files map[string]string // what has to be replaced or added, by name
	can   map[*patch]bool   // the patches that are in it
}

// variant is a function as a patch leaves it.
type variant struct {
	at   int    // where the body of the original begins, behind its brace
	ask  string // what goes there
	body string // the whole function, under a name of its own
}

// joined makes one tree of the patches that change nothing but the bodies of
// functions. The others have to be built by themselves.
func joined(root string, patches []*patch) (*together, error) {
	t := &together{files: map[string]string{}, can: map[*patch]bool{}}
	variants := map[string][]variant{}
	for _, p := range patches {
		edited, err := p.apply(root)
		if err != nil {
			return nil, err
		}
		mine := map[string][]variant{}
		for file, text := range edited {
			was, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return nil, err
			}
			l, ok := changedBodies(string(was), text, p.name)
			if !ok {
				mine = nil
				break
			}
			mine[file] = l
		}
		for file, l := range mine {
			variants[file] = append(variants[file], l...)
			t.can[p] = true
		}
	}
	for file, l := range variants {
		was, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		pkg, text := asking(string(was), l)
		t.files[file] = text
		t.files[path.Join(path.Dir(file), "broken_rule.go")] = "package " + pkg + "\n\nimport \"os\"\n\nvar brokenRule = os.Getenv(\"" + brokenBy + "\")\n"
	}
	return t, nil
}

// asking puts the variants into the text of a file.
func asking(was string, l []variant) (pkg, text string) {
	f, err := parser.ParseFile(token.NewFileSet(), "", was, parser.PackageClauseOnly)
	if err == nil {
		pkg = f.Name.Name
	}
	// From behind, so that what stands before keeps its place.
	slices.SortStableFunc(l, func(a, b variant) int { return b.at - a.at })
	text = was
	for _, v := range l {
		text = text[:v.at] + v.ask + text[v.at:] + v.body
	}
	return pkg, text
}

// changedBodies lists the functions whose bodies differ between two texts of a file. It
// says no where anything else differs, or where a function cannot stand there twice.
func changedBodies(was, now, rule string) ([]variant, bool) {
	old, okOld := declared(was)
	edited, okNow := declared(now)
	if !okOld || !okNow || !slices.Equal(slices.Sorted(maps.Keys(old)), slices.Sorted(maps.Keys(edited))) {
		return nil, false
	}
	var l []variant
	for key, a := range old {
		b := edited[key]
		if a.text == b.text {
			continue
		}
		call, ok := callOf(a.fn, b.fn, a.text, b.text, rule)
		if !ok {
			return nil, false
		}
		name := b.fn.Name.Pos() - b.from
		l = append(l, variant{
			at:   int(a.fn.Body.Lbrace), // positions count from one
			ask:  fmt.Sprintf(" if brokenRule == %q { %s }; ", rule, call),
			body: "\n" + b.text[:name] + b.fn.Name.Name + "Broken" + rule + b.text[int(name)+len(b.fn.Name.Name):] + "\n",
		})
	}
	return l, len(l) > 0
}

// declaration is a piece of a file: a function, or anything else (fn is nil).
type declaration struct {
	text string
	from token.Pos
	fn   *ast.FuncDecl
}

// declared divides a file into its declarations, without the comments before them.
func declared(text string) (map[string]declaration, bool) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, false
	}
	all := map[string]declaration{}
	for i, d := range f.Decls {
		key := fmt.Sprint(i) // their order stays where nothing but bodies changes
		one := declaration{text: text[d.Pos()-1 : d.End()-1], from: d.Pos()}
		if fn, ok := d.(*ast.FuncDecl); ok {
			one.fn, key = fn, key+fn.Name.Name
			one.text, one.from = text[fn.Type.Func-1:fn.End()-1], fn.Type.Func
		}
		all[key] = one
	}
	return all, true
}

// callOf is the statement that calls a function's variant with what the function was
// given. There is none where its head changes, where something that it is given has
// no name, and for generic functions and init.
func callOf(a, b *ast.FuncDecl, was, now, rule string) (string, bool) {
	if a == nil || b == nil || a.Body == nil || b.Body == nil || a.Type.TypeParams != nil || a.Name.Name == "init" {
		return "", false
	}
	if was[:a.Body.Lbrace-a.Type.Func] != now[:b.Body.Lbrace-b.Type.Func] {
		return "", false
	}
	call := a.Name.Name + "Broken" + rule
	if a.Recv != nil {
		names := a.Recv.List[0].Names
		if len(names) != 1 || names[0].Name == "_" {
			return "", false
		}
		call = names[0].Name + "." + call
	}
	var args []string
	for _, field := range a.Type.Params.List {
		if len(field.Names) == 0 {
			return "", false
		}
		for _, n := range field.Names {
			if n.Name == "_" {
				return "", false
			}
			args = append(args, n.Name)
		}
		if _, ok := field.Type.(*ast.Ellipsis); ok {
			args[len(args)-1] += "..."
		}
	}
	call += "(" + strings.Join(args, ", ") + ")"
	if a.Type.Results != nil && len(a.Type.Results.List) > 0 {
		return "return " + call, true
	}
	return call + "; return", true
}
