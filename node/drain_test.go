package node

import (
	"testing"
)

// TestDrainKeepsPorts: an end that is asked for is no unbind: what clients had bound is held
// for them in the next life, as after a crash.
func TestDrainKeepsPorts(t *testing.T) {
	cfg := testConfig(t)
	lives := func(before int, use func(n *Node)) {
		t.Helper()
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		stop := startNode(t, n)
		held := 0
		for _, h := range n.hosts.Locals() {
			e, _ := h.Lock()
			held += e.Held()
			h.Unlock()
		}
		if held != before {
			t.Errorf("%d ports are held, want %d", held, before)
		}
		use(n)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	local := cfg.RDS.Addresses[0]
	lives(0, func(n *Node) {
		mustBind(t, cfg, bindTo(local, 4100))
		mustBind(t, cfg, bindTo(local, 4200))
	})
	lives(2, func(n *Node) {})
	lives(2, func(n *Node) {})
}
