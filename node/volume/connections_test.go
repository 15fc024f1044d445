package volume

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
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

// TestRoomIsMadeForAConnection: where others hold all the memory but what peers leave to them, who
// rests makes room for a connection of a session, and what he held is all that it takes. Who holds
// much has nobody make room, and where nobody rests it is refused.
func TestRoomIsMadeForAConnection(t *testing.T) {
	n := newServerNode(t, freePort(t))
	n.memory = quota.New(256<<20, nil)
	rests, asked := false, 0
	resting := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.1")))
	n.evict = func() bool {
		if asked++; rests {
			resting.Give(quota.Peers, connBytes)
		}
		return rests
	}
	srv := n.start().srv
	resting.Grow(quota.Peers, connBytes)
	n.memory.Account(quota.User(1)).Grow(quota.Clients, n.memory.Limit()-connBytes)
	peer := n.memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.2")))
	if err := srv.charge(peer); !errors.Is(err, rdserr.ErrNoMemory) || asked != 1 || peer.Used() != 0 {
		t.Errorf("nobody rests: %v after %d questions, %d bytes are charged", err, asked, peer.Used())
	}
	rests = true
	peer.Hold(littleBytes + 1)
	if err := srv.charge(peer); !errors.Is(err, rdserr.ErrNoMemory) || asked != 1 {
		t.Errorf("for a peer with much: %v after %d questions", err, asked)
	}
	peer.Hold(-1)
	if err := srv.charge(peer); err != nil || asked != 2 || n.memory.Used() != n.memory.Limit() {
		t.Errorf("one rests: %v after %d questions, %d bytes are held of %d", err, asked, n.memory.Used(), n.memory.Limit())
	}
}
