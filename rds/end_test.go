package rds

import (
	"testing"

	"github.com/rdsd/rdsd/conn"
)

// TestEndSaysWhetherThereAreOrders holds that a step with orders of any kind, or of several, says that there are some.
func TestEndSaysWhetherThereAreOrders(t *testing.T) {
	for kinds := range 1 << 6 {
		e, _ := lone(t, nil)
		var o Orders
		e.Take(&o)
		for kind, give := range []func(){
			func() { e.conns.Actions = append(e.conns.Actions, conn.Action{}) },
			func() { e.ready = append(e.ready, &Socket{}) },
			func() { e.states = append(e.states, conn.StateChange{}) },
			func() { e.cnotes = append(e.cnotes, Notice{}) },
			func() { e.evicted = append(e.evicted, nil) },
			func() { e.collect = true },
		} {
			if kinds&(1<<kind) != 0 {
				give()
			}
		}
		if _, ordered := e.End(); ordered != (kinds != 0) {
			t.Errorf("with orders of kinds %06b: %v", kinds, ordered)
		}
	}
}
