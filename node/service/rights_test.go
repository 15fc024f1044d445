package service

import (
	"context"
	"errors"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// changes are the calls that change something, or cost another node something. All
// others only read. A call that is new in a service has to be put here or in reads.
var changes = map[string]bool{
	"DropPath": true, "CancelSent": true, "CloseSocket": true,
	"Export": true, "Unexport": true, "ForceClose": true, "Map": true, "Unmap": true, "Remap": true, "Info": true, "Resize": true,
	"AddPath": true, "RemovePath": true, "DisconnectPath": true, "ReconnectPath": true, "SetPolicy": true, "SetSession": true, "ResetStats": true,
}

var reads = map[string]bool{
	"GetStatus": true, "GetCounters": true, "ListPeers": true, "ListSockets": true, "ListQueue": true, "ListCongestion": true, "Ping": true,
	"GetCongestionHistory": true, "ListCongestionMaps": true, "ListErrors": true, "GetConfig": true,
	"List": true, "Get": true, "ListSessions": true, "ListPaths": true, "Check": true,
}

// TestEveryCallByEveryone: each unary call of Admin and VolumeService, as each sort
// of caller: what changes something is refused to whoever is no administrator, and
// counted; what reads is refused to nobody.
func TestEveryCallByEveryone(t *testing.T) {
	n := startWorld(t, func(c *config.Config) { c.API.AdminUIDs = []uint32{1000} })
	services := []struct {
		desc *grpc.ServiceDesc
		srv  any
	}{{&rdsdv1.Admin_ServiceDesc, &adminServer{front: n.services}}, {&rdsdv1.VolumeService_ServiceDesc, &volumeServer{front: n.services}}}
	for _, caller := range []struct {
		id    config.Identity
		admin bool
	}{
		{config.Identity{UID: 0}, true}, {config.Identity{UID: uint32(os.Getuid())}, true}, {config.Identity{UID: 1000}, true},
		{config.Identity{UID: 1001, GID: 0}, false}, {config.Identity{UID: config.NobodyID, GID: config.NobodyID}, false},
		{config.Identity{UID: 0, Remote: true}, false}, {config.Identity{UID: 1000, Remote: true}, false},
	} {
		ctx, err := withIdentity(peer.NewContext(clienttest.Context(t), &peer.Peer{AuthInfo: authInfo{Identity: caller.id}}))
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

// TestStreamsByEveryone: each call of Admin that is answered by a stream, likewise.
func TestStreamsByEveryone(t *testing.T) {
	n := startWorld(t, func(c *config.Config) { c.API.AdminUIDs = []uint32{1000} })
	for _, m := range rdsdv1.Admin_ServiceDesc.Streams {
		for id, admin := range map[config.Identity]bool{{UID: 0}: true, {UID: 1000}: true, {UID: 1001}: false, {UID: 0, Remote: true}: false} {
			ctx, cancel := context.WithCancel(peer.NewContext(clienttest.Context(t), &peer.Peer{AuthInfo: authInfo{Identity: id}}))
			ctx, err := withIdentity(ctx)
			if err != nil {
				t.Fatal(err)
			}
			cancel() // who is served has gone away, which is no error
			denied := n.deps.Count.AdminDenied.Load()
			err = m.Handler(&adminServer{front: n.services}, &goneStream{ctx: ctx})
			want := m.StreamName == "Trace" && !admin
			if errors.Is(err, rdserr.ErrPerm) != want || !want && err != nil {
				t.Errorf("%s by %+v: %v", m.StreamName, id, err)
			}
			if counted := n.deps.Count.AdminDenied.Load() != denied; counted != want {
				t.Errorf("%s by %+v: refused %v, counted %v", m.StreamName, id, want, counted)
			}
		}
	}
	if got := n.hosts.Traces(); got != 0 {
		t.Errorf("%d traces outlive their callers", got)
	}
}

// goneStream is a stream whose client has gone away.
type goneStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *goneStream) Context() context.Context     { return s.ctx }
func (s *goneStream) RecvMsg(any) error            { return nil }
func (s *goneStream) SendMsg(any) error            { return nil }
func (s *goneStream) SendHeader(metadata.MD) error { return nil }

// TestNoIdentityNoRights: a handler that no interceptor told who calls takes him for
// nobody.
func TestNoIdentityNoRights(t *testing.T) {
	if id := identityFrom(context.Background()); !id.Remote || id.UID != config.NobodyID || id.GID != config.NobodyID {
		t.Errorf("a caller without identity is %+v", id)
	}
}

// Changing is for administrators; the identity is the connection's.
func TestAdminRights(t *testing.T) {
	cfg := clienttest.Config(t)
	cfg.API.AdminUIDs = []uint32{1000}
	n := newWorld(t, cfg, world{})
	a := &adminServer{front: n.services}
	for _, tc := range []struct {
		id config.Identity
		ok bool
	}{
		{config.Identity{UID: 0}, true}, {config.Identity{UID: uint32(os.Getuid())}, true}, {config.Identity{UID: 1000}, true},
		{config.Identity{UID: 1001}, false}, {config.Identity{UID: 0, Remote: true}, false}, {config.Identity{UID: 1000, Remote: true}, false},
	} {
		ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: authInfo{Identity: tc.id}})
		ctx, err := withIdentity(ctx)
		if err != nil {
			t.Fatal(err)
		}
		err = a.front.mayChange(ctx, "DropPath")
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, rdserr.ErrPerm) {
			t.Errorf("%+v: %v", tc.id, err)
		}
		if _, err := a.CloseSocket(ctx, &rdsdv1.CloseSocketRequest{}); errors.Is(err, rdserr.ErrPerm) == tc.ok {
			t.Errorf("CloseSocket by %+v: %v", tc.id, err)
		}
	}
	if n.deps.Count.AdminDenied.Load() != 6 {
		t.Errorf("%d refusals counted, want 6", n.deps.Count.AdminDenied.Load())
	}
}
