package volume

import (
	"net/netip"
	"testing"
)

// TestDropRefused: paths that may not go on are given up on either side, and connect anew.
func TestDropRefused(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	srv, cli := n.start(), newClientNode(t, port).start()
	mustExport(t, srv, memory("one", 1<<20))
	mustMap(t, cli, MapSpec{Node: n.node(), Name: "one"})
	asked := 0
	judge := func(here bool, mine netip.Addr, yes bool) func(string, bool, netip.AddrPort, netip.AddrPort) bool {
		return func(via string, accepted bool, local, remote netip.AddrPort) bool {
			asked++
			if via != TransportTCP || accepted != here || local.Addr() != mine || !remote.IsValid() {
				t.Errorf("asked for a link over %s, accepted %v, from %v to %v", via, accepted, local, remote)
			}
			return yes
		}
	}
	for _, side := range []struct {
		h        *Host
		accepted bool
		mine     netip.Addr
	}{{srv, true, serverAddrs[0]}, {cli, false, clientAddrs[0]}} {
		was := cli.Paths()[0].ReconnectsOK
		if n := side.h.DropRefused(judge(side.accepted, side.mine, true)); n != 0 || asked == 0 {
			t.Errorf("%d paths were dropped without a reason, %d links asked for", n, asked)
		}
		if n := side.h.DropRefused(judge(side.accepted, side.mine, false)); n != 1 {
			t.Errorf("%d paths were dropped, want 1", n)
		}
		eventually(t, "the path is back", func() bool {
			p := cli.Paths()[0]
			return p.State == PathConnected && p.ReconnectsOK > was
		})
		asked = 0
	}
}
