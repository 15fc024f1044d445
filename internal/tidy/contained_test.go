package tidy

import (
	"go/ast"
	"go/types"
	"path"
	"slices"
	"strings"
	"testing"
)

// daemon are the packages, and a file, whose code a daemon runs. Other commands and SDKs are
// not among them: there a panic ends the program of the one it is for.
var daemon = []string{
	"api/rdsd/v1/fastwire", "blk", "blk/nbd", "node", "node/access", "node/base", "node/client", "node/config", "node/datagram", "node/health", "node/page", "node/page/hour", "node/peers", "node/service", "node/volume", "shm", "transport", "transport/ib/soft", "transport/tcp", "wire", "wire/rtrs", "wire/rnbd", "conn", "cong", "rds", "roce", "rtrs", "rnbd",
	"internal/accept", "internal/buf", "internal/counters", "internal/guard", "internal/msgpool", "internal/netlocal", "internal/plain",
	"internal/quota", "internal/reactor", "internal/stats", "internal/unixsock",
	"rdsd/internal/cli/serve.go",
}

// kept are function values that are made once, and what they are.
var kept = map[string]string{
	"blk/file_submit.go f.run":   "work",
	"blk/nbd/send.go c.drainFn":  "drain",
	"blk/nbd/status.go c.lookFn": "lookUp",
}

// uncontained are goroutines without a deferred Recover, with the reason.
var uncontained = map[string]string{
	"internal/guard/guard.go func":        "takes locks and gives them back, for a panic that is being looked at",
	"internal/reactor/reactor.go r.run":   "its turns defer contain, which tells for whom the work was",
	"node/logwriter.go l.drain":           "writes the log, and so has nowhere to tell of a panic",
	"node/access/turns.go t.end":          "takes a mark that it has put there; if it panicked, no turn would be had any more",
	"node/service/answers.go a.overdue":   "looks at a count and asks the collector; if it ended with the lock held no list would be answered any more",
	"node/volume/machine.go cancel":       "a function of package context",
	"node/volume/machine.go f":            "a function given to Machine.Go, whose calls are looked at as well",
	"node/volume/machine.go func":         "one given to group.Go, whose calls are looked at as well",
	"transport/tcp/onesided_dial.go func": "sets a deadline of package net",
	"blk/nbd/client.go c.read":            "the client, which no daemon is",
	"blk/nbd/client.go func":              "the client, which no daemon is",
	"blk/fault.go func":                   "a layer that breaks stores on purpose, which no daemon has",

	"rdsd/internal/cli/serve.go func": "calls ReloadFrom, which contains itself, so that there is a next one",
}

// TestGoroutinesAreContained: whatever a daemon starts, which nobody else would
// recover from a panic in, defers guard.Guard.Recover, so that a fault of one is the
// end of one: a go statement, the Go of a group, a timer of the runtime.
func TestGoroutinesAreContained(t *testing.T) {
	list := sources(t)
	bodies := map[string][]*ast.BlockStmt{} // by directory and name, which several types may have
	for _, s := range list {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !s.test && f.Body != nil {
				name := s.dir + " " + f.Name.Name
				bodies[name] = append(bodies[name], f.Body)
			}
		}
	}
	used := map[string]bool{}
	for _, s := range list {
		if s.test || !slices.Contains(daemon, s.dir) && !slices.Contains(daemon, s.path) {
			continue
		}
		check := func(n ast.Node, f ast.Expr) {
			name, body := types.ExprString(f), []*ast.BlockStmt(nil)
			if lit, ok := f.(*ast.FuncLit); ok {
				name, body = "func", []*ast.BlockStmt{lit.Body}
			} else {
				short := name[strings.LastIndexByte(name, '.')+1:]
				if k := kept[s.path+" "+name]; k != "" {
					used[s.path+" "+name] = true
					short = k
				}
				body = bodies[path.Dir(s.path)+" "+short]
			}
			switch key := s.path + " " + name; {
			case slices.ContainsFunc(body, contained):
			case uncontained[key] != "":
				used[key] = true
			default:
				t.Errorf("%s: %s: a panic in it ends the daemon; want a deferred Recover of a guard, or a reason here", s.fset.Position(n.Pos()), name)
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				check(n, n.Call.Fun)
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				switch {
				case !ok:
				case sel.Sel.Name == "Go" && len(n.Args) == 1:
					check(n, n.Args[0])
				case sel.Sel.Name == "AfterFunc" && len(n.Args) == 2:
					check(n, n.Args[1])
				}
			}
			return true
		})
	}
	for k := range uncontained {
		if !used[k] {
			t.Errorf("%s is in the list and not in the sources", k)
		}
	}
	for k := range kept {
		if !used[k] {
			t.Errorf("%s is in the list and not in the sources", k)
		}
	}
}

// contained reports whether a function does nothing, or defers Recover itself.
func contained(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return true
	}
	for _, s := range b.List {
		d, ok := s.(*ast.DeferStmt)
		if !ok || len(d.Call.Args) != 2 {
			continue
		}
		f, ok := d.Call.Fun.(*ast.SelectorExpr)
		what, is := d.Call.Args[0].(*ast.SelectorExpr)
		if ok && is && f.Sel.Name == "Recover" && types.ExprString(what.X) == "guard" {
			return true
		}
	}
	return false
}
