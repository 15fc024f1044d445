package node

import (
	"context"
	"errors"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// changes are the calls that change something, or cost another node something. All
// others only read. A call that is new in a service has to be put here or in reads.
var changes = map[string]bool{
	"DropPath": true, "CancelSent": true, "CloseSocket": true,
	"Export": true, "Unexport": true, "Map": true, "Unmap": true, "Remap": true, "Info": true, "Resize": true,
	"AddPath": true, "RemovePath": true, "DisconnectPath": true, "ReconnectPath": true, "SetPolicy": true, "ResetStats": true,
}

var reads = map[string]bool{
	"GetStatus": true, "GetCounters": true, "ListPeers": true, "ListSockets": true, "ListQueue": true, "ListCongestion": true, "Ping": true, "ListErrors": true, "GetConfig": true,
	"List": true, "Get": true, "ListSessions": true, "ListPaths": true, "Check": true,
}

// TestEveryCallByEveryone: each unary call of Admin and VolumeService, as each sort
// of caller: what changes something is refused to whoever is no administrator, and
// counted; what reads is refused to nobody.
func TestEveryCallByEveryone(t *testing.T) {
	n, _ := startWith(t, func(c *config.Config) { c.API.AdminUIDs = []uint32{1000} })
	services := []struct {
		desc *grpc.ServiceDesc
		srv  any
	}{{&rdsdv1.Admin_ServiceDesc, &adminServer{node: n}}, {&rdsdv1.VolumeService_ServiceDesc, &volumeServer{node: n}}}
	for _, caller := range []struct {
		id    config.Identity
		admin bool
	}{
		{config.Identity{UID: 0}, true}, {config.Identity{UID: uint32(os.Getuid())}, true}, {config.Identity{UID: 1000}, true},
		{config.Identity{UID: 1001, GID: 0}, false}, {config.Identity{UID: config.NobodyID, GID: config.NobodyID}, false},
		{config.Identity{UID: 0, Remote: true}, false}, {config.Identity{UID: 1000, Remote: true}, false},
	} {
		ctx, err := withIdentity(peer.NewContext(testContext(t), &peer.Peer{AuthInfo: authInfo{Identity: caller.id}}))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			for _, m := range s.desc.Methods {
				if changes[m.MethodName] == reads[m.MethodName] {
					t.Fatalf("%s is neither in changes nor in reads", m.MethodName)
				}
				denied := n.deps.Count.AdminDenied.Load()
				_, err := m.Handler(s.srv, ctx, func(any) error { return nil }, nil)
				refused := errors.Is(err, rdserr.ErrPerm)
				if want := changes[m.MethodName] && !caller.admin; refused != want {
					t.Errorf("%s by %+v: %v", m.MethodName, caller.id, err)
				}
				if counted := n.deps.Count.AdminDenied.Load() != denied; counted != refused {
					t.Errorf("%s by %+v: refused %v, counted %v", m.MethodName, caller.id, refused, counted)
				}
			}
		}
	}
}

// TestMayBindIsAsked: who may not have a port does not get it, by its number or by
// chance, and a grant by uid or gid gives it to its owner alone.
func TestMayBindIsAsked(t *testing.T) {
	uid, gid := uint32(2000), uint32(3000)
	n, cfg := startWith(t, func(c *config.Config) {
		c.Ports = []config.PortGrant{{Range: config.PortRange{First: 100, Last: 110}, UID: &uid}, {Range: config.PortRange{First: 5000, Last: 5009}, GID: &gid, Exclusive: true}}
	})
	for _, c := range []struct {
		id   config.Identity
		port uint16
		ok   bool
	}{
		{config.Identity{UID: 2000, GID: 1}, 100, true}, {config.Identity{UID: 2000, GID: 1}, 110, true}, {config.Identity{UID: 2000, GID: 1}, 111, false},
		{config.Identity{UID: 2001, GID: 1}, 105, false}, {config.Identity{UID: 2001, GID: 3000}, 5009, true}, {config.Identity{UID: 2001, GID: 1}, 5009, false},
		{config.Identity{UID: 2001, GID: 1}, 5010, true}, {config.Identity{UID: 0}, 7, true}, {config.Identity{UID: 0, Remote: true}, 7, false},
		{config.Identity{UID: 2000, GID: 3000, Remote: true}, 100, false},
	} {
		s := &sockStream{front: n.clients, id: c.id}
		_, _, err := s.prepare(bindTo(cfg.RDS.Addresses[0], c.port), 1000)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, rdserr.ErrPerm) {
			t.Errorf("port %d for %+v: %v", c.port, c.id, err)
		}
		if err == nil {
			n.clients.sockets.remove(s)
			n.clients.sockets.remove(s) // again: nothing
		}
	}
	if b := n.clients.Budget(); b.Used != 0 || b.Refused != 0 {
		t.Errorf("the sockets left are %+v", b)
	}
}

// TestSocketLimits: the limit of all sockets and of each user's, at their edges; what
// is refused holds no memory, and a place that is given back is there again.
func TestSocketLimits(t *testing.T) {
	cfg := testConfig(t)
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	table := newSocketTable(5, 3, n.deps.Memory)
	var open []*sockStream
	before := n.deps.Memory.Used()
	reserve := func(uid uint32, want error) {
		t.Helper()
		s := &sockStream{front: n.clients, id: config.Identity{UID: uid}}
		err := table.reserve(s, 4096)
		if !errors.Is(err, want) {
			t.Errorf("socket %d, of user %d: %v, want %v", len(open), uid, err, want)
		}
		if err == nil {
			open = append(open, s)
		}
		if held := n.deps.Memory.Used() - before; held != int64(len(open))*4096 {
			t.Errorf("%d sockets hold %d bytes", len(open), held)
		}
	}
	for range 3 {
		reserve(1, nil)
	}
	reserve(1, rdserr.ErrTooMany)
	reserve(2, nil)
	reserve(2, nil)
	reserve(3, rdserr.ErrTooMany)
	table.remove(open[0])
	open = open[1:]
	reserve(1, nil)
	if b := table.budget(); b.Used != 5 || b.Limit != 5 || b.Refused != 2 {
		t.Errorf("the sockets are %+v", b)
	}
	table.refuse(base.ErrDraining)
	reserve(4, rdserr.ErrShutdown)
	for _, s := range open {
		table.remove(s)
		table.remove(s)
	}
	if len(table.byUser) != 0 || table.budget().Used != 0 || n.deps.Memory.Used() != before {
		t.Errorf("%v, %+v and %d bytes are left", table.byUser, table.budget(), n.deps.Memory.Used()-before)
	}
	if err := table.reserve(&sockStream{front: n.clients, id: config.Identity{UID: 1}}, 1<<50); err == nil || n.deps.Memory.Used() != before {
		t.Errorf("more than the node has: %v, %d bytes are left", err, n.deps.Memory.Used()-before)
	}
}

// TestNoIdentityNoRights: a handler that no interceptor told who calls takes him for
// nobody.
func TestNoIdentityNoRights(t *testing.T) {
	if id := identityFrom(context.Background()); !id.Remote || id.UID != config.NobodyID || id.GID != config.NobodyID {
		t.Errorf("a caller without identity is %+v", id)
	}
}
