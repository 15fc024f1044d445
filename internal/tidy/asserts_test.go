package tidy

import (
	"fmt"
	"go/ast"
	"testing"
)

// asked are the interfaces written in place that a value is asked for, in files that may,
// with the reason: a method of the library that no type of ours has to have.
var asked = map[string]string{
	"node/config/load.go":        "errors.Join has no type with a name",
	"node/config/volumes.go":     "errors.Join has no type with a name",
	"rdsd/internal/cli/serve.go": "errors.Join has no type with a name",
	"blk/layer.go":               "the one place that knows how layers are unwrapped",
	"internal/toll/conn.go":      "crypto/tls has no interface for it",
	"internal/accept/accept.go":  "package net has no interface for it",
}

// TestAssertionsHaveNames: who asks a value of ours whether it has methods (v.(T) with ok)
// names the interface, and somewhere a line says of the type that it is one (var _ T =
// ...). Else the answer is no when a method gets another name, and nobody is told.
func TestAssertionsHaveNames(t *testing.T) {
	used := map[string]bool{}
	claimed := map[string]bool{} // names of interfaces that some line claims for a type
	type question struct{ where, name string }
	var questions []question
	interfaces := map[string]bool{} // of ours, by package name and name
	list := sources(t)
	for _, s := range list {
		for _, d := range s.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				switch x := spec.(type) {
				case *ast.ValueSpec:
					if len(x.Names) > 0 && x.Names[0].Name == "_" && x.Type != nil {
						claimed[nameOf(s.ast.Name.Name, x.Type)] = true
					}
				case *ast.TypeSpec:
					if _, ok := x.Type.(*ast.InterfaceType); ok && !s.test {
						interfaces[s.ast.Name.Name+"."+x.Name.Name] = true
					}
				}
			}
		}
	}
	for _, s := range list {
		if s.test || s.generated || s.dir == "internal/simtest" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			a, ok := n.(*ast.AssignStmt)
			if !ok || len(a.Lhs) != 2 || len(a.Rhs) != 1 {
				return true
			}
			x, ok := a.Rhs[0].(*ast.TypeAssertExpr)
			if !ok || x.Type == nil {
				return true
			}
			where := fmt.Sprintf("%s:%d", s.path, s.fset.Position(x.Pos()).Line)
			if _, inPlace := x.Type.(*ast.InterfaceType); inPlace {
				if asked[s.path] == "" {
					t.Errorf("%s: an interface written in place is asked for; give it a name, and claim it for the types that have it", where)
				}
				used[s.path] = true
			} else if name := nameOf(s.ast.Name.Name, x.Type); interfaces[name] {
				questions = append(questions, question{where, name})
			}
			return true
		})
	}
	for _, q := range questions {
		if !claimed[q.name] {
			t.Errorf("%s: whether a value is a %s is asked, and no line claims it for a type (var _ %s = ...)", q.where, q.name, q.name)
		}
	}
	for f := range asked {
		if !used[f] {
			t.Errorf("%s asks for no interface written in place any more; take it out of asked", f)
		}
	}
	if len(questions) < 5 {
		t.Errorf("only %d questions were found", len(questions))
	}
}

// nameOf is a type's name with its package's.
func nameOf(pkg string, e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return pkg + "." + x.Name
	case *ast.SelectorExpr:
		if p, ok := x.X.(*ast.Ident); ok {
			return p.Name + "." + x.Sel.Name
		}
	}
	return ""
}
