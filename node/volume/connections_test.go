package volume

import (
	"context"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
)

// TestConnectionsAreCharged: each connection of a session is charged to the peer while it lives, and
// one that there is no memory for is refused, which its administrator is told.
func TestConnectionsAreCharged(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	n.memory = quota.New(256<<20, nil)
	srv, cli := n.start(), newClientNode(t, port).start()
	used := func() int64 { return n.memory.Kinds()[quota.Peers].Used }
	mustExport(t, srv, memory("one", 1<<20))
	m := mustMap(t, cli, MapSpec{Node: n.node(), Name: "one"})
	if got := used(); got != 2*connBytes {
		t.Errorf("two connections are charged with %d bytes", got)
	}
	if err := cli.Unmap(context.Background(), m.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is charged", func() bool { return used() == 0 })

	events, stop := srv.Watch(FromNow)
	defer stop()
	other := n.memory.Account(quota.Holder{UID: 1, User: true})
	other.Grow(quota.Clients, n.memory.Limit())
	_, err := cli.Map(context.Background(), MapSpec{Node: n.node(), Name: "one"})
	if err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("without memory: %v", err)
	}
	other.Give(quota.Clients, n.memory.Limit())
	for e := range events {
		if e.Kind == EventSession && e.State == "refused" {
			if !strings.Contains(e.Text, "no memory") || e.Err == nil || e.Role != RoleServer {
				t.Errorf("the administrator is told %+v", e)
			}
			break
		}
	}
	if got := used(); got != 0 {
		t.Errorf("after the refusal %d bytes are charged", got)
	}
	mustMap(t, cli, MapSpec{Node: n.node(), Name: "one"})
}
