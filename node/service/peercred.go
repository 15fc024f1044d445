package service

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// peerCreds are transport credentials that ask the kernel who connected
// (SO_PEERCRED: the uid, gid and pid at the time of connect). grpc's own local
// credentials look at the address only and would take anybody's word.
//
// They also bound the connections, of all users and of each one: a connection
// over a limit is closed before it costs a goroutine or a buffer of HTTP/2.
type peerCreds struct {
	clients  *access.Clients
	calls    *callTable
	guard    *guard.Guard
	memory   *quota.Node
	closers  *access.Closers
	tolls    *toll.Users
	refusals refusals // connections that live to be told why they may not
}

// authInfo is what handlers find in peer.FromContext.
type authInfo struct {
	credentials.CommonAuthInfo
	config.Identity
	refused error // why nothing is done for this connection; nil: it is served
}

func (authInfo) AuthType() string { return "rdsd-peercred" }

func (c *peerCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	id, err := access.Identify(conn)
	if err != nil {
		return c.refuse(conn, id, credentials.InvalidSecurityLevel, err)
	}
	level := levelOf(id)
	account, err := c.clients.Add(id, connBytes)
	if err != nil {
		return c.refuse(conn, id, level, err)
	}
	release := func() { c.clients.Remove(id, account, connBytes) }
	return c.calls.wrap(c.measured(conn, id), id, account, release), authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id, nil}, nil
}

// refuse lets a connection live for a moment in which every call is told why there
// is no more for it: an error here would be a connection that breaks. With several of
// those under way (refusals) it is one. grpc would close conn then, in a goroutine of each.
func (c *peerCreds) refuse(conn net.Conn, id config.Identity, level credentials.SecurityLevel, err error) (net.Conn, credentials.AuthInfo, error) {
	if !c.refusals.begin(id.UID) {
		c.closers.Close(id.UID, conn)
		return nil, nil, credentials.ErrConnDispatched
	}
	account := c.memory.Account(quota.User(id.UID)) // for what it sends meanwhile
	var end *time.Timer
	told := sync.OnceFunc(c.refusals.told)
	k := c.calls.wrap(c.measured(conn, id), id, account, func() { end.Stop(); told(); c.refusals.ended(id.UID); account.Close() })
	end = time.AfterFunc(refusedLife, func() {
		defer c.guard.Recover(guard.Call, nil)
		told() // the close may stand still
		c.calls.part(k, func() {})
	})
	return k, authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id, base.NoDescriptors(err)}, nil
}

// Closing is how many refused connections wait to be closed.
func (f *Front) Closing() int { return f.closers.Waiting() }

// measured ends a client's connection when it is too costly to be woken.
func (c *peerCreds) measured(conn net.Conn, id config.Identity) net.Conn {
	return toll.Wrap(conn, c.tolls.Of(id.UID), func(why error) { c.calls.count.CostlyClient(c.calls.log, id, why) })
}

// closedAtOnce bounds the threads that connections can hold which are not even told.
const closedAtOnce = 256

// refusedLife is how long a refused connection lives.
const refusedLife = 500 * time.Millisecond

// levelOf is how safe a connection is from others.
func levelOf(id config.Identity) credentials.SecurityLevel {
	if id.Remote {
		return credentials.NoSecurity
	}
	return credentials.PrivacyAndIntegrity
}

func (c *peerCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("rdsd: these credentials are for servers")
}

func (c *peerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "rdsd-peercred"}
}

func (c *peerCreds) Clone() credentials.TransportCredentials { return c }

func (c *peerCreds) OverrideServerName(string) error { return nil }

type identityKey struct{}

// withIdentity is the auth function: it takes the identity from the
// connection. A call without one did not come through our listeners.
func withIdentity(ctx context.Context) (context.Context, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.AuthInfo.(authInfo); ok && a.refused != nil {
			return nil, a.refused
		}
	}
	id, ok := transportIdentity(ctx)
	if !ok {
		return nil, rdserr.With(rdserr.ErrPerm, "the caller has no identity")
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}

func transportIdentity(ctx context.Context) (config.Identity, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return config.Identity{}, false
	}
	a, ok := p.AuthInfo.(authInfo)
	return a.Identity, ok
}

// identityFrom returns the caller of a handler.
func identityFrom(ctx context.Context) config.Identity {
	id, ok := ctx.Value(identityKey{}).(config.Identity)
	if !ok { // the interceptor did not run: give no rights
		return config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	}
	return id
}
