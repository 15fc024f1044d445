package tidy

import (
	"go/ast"
	"strings"
	"testing"
)

// TestQueuesAreWalkedAlone: who fills a port is a walk along a receive queue with the lock
// of its address held. In the shell one function makes it, for one port at a time
// (datagram.Local.Reader); in a list of ports a lock would be held for all of their walks.
func TestQueuesAreWalkedAlone(t *testing.T) {
	const alone = "node/datagram/portreader.go"
	walks := 0
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.dir, "node") {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := c.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Culprits" {
				if walks++; s.path != alone {
					t.Errorf("%s:%d walks along a queue; ask datagram.Local.Reader", s.path, s.fset.Position(c.Pos()).Line)
				}
			}
			return true
		})
	}
	if walks != 1 {
		t.Errorf("%d places walk along a queue, want the one in %s", walks, alone)
	}
}
