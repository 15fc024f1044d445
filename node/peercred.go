package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/toll"
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
	clients  *clientTable
	calls    *callTable
	guard    *guard.Guard
	refusals atomic.Int32 // connections that live to be told why they may not
}

// clientTable counts connections by user. Entries exist only for users with
// connections, so it is as large as limits.max_clients at most.
type clientTable struct {
	max, maxPerUID int
	memory         *quota.Node
	refused        func(config.Identity, error) // called without the lock
	room           func(config.Identity) error  // whether the process has descriptors for one more; may be nil

	mu     sync.Mutex
	total  int            // guarded by mu
	byUser map[uint32]int // guarded by mu
	denied uint64         // guarded by mu
}

func newClientTable(max, maxPerUID int, memory *quota.Node, refused func(config.Identity, error)) *clientTable {
	return &clientTable{max: max, maxPerUID: maxPerUID, memory: memory, refused: refused, byUser: map[uint32]int{}}
}

func (t *clientTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

func (t *clientTable) budget() base.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return base.Budget{Name: "clients", Used: uint64(t.total), Limit: uint64(t.max), Refused: t.denied}
}

// add counts a connection that takes size bytes of its user's account, which
// remove closes.
func (t *clientTable) add(id config.Identity, size int64) (*quota.Account, error) {
	account := t.memory.Account(quota.User(id.UID))
	var full error
	if t.room != nil {
		full = t.room(id)
	}
	t.mu.Lock()
	err := account.Take(quota.Clients, size)
	took := err == nil
	switch {
	case !took:
	case full != nil:
		err = full
	case t.total >= t.max:
		err = rdserr.With(rdserr.ErrTooMany, "limits.max_clients (%d) connections are open", t.max)
	case t.byUser[id.UID] >= t.maxPerUID:
		err = rdserr.With(rdserr.ErrTooMany, "uid %d has limits.max_clients_per_uid (%d) connections open", id.UID, t.maxPerUID)
	default:
		t.total++
		t.byUser[id.UID]++
	}
	if err != nil {
		t.denied++
	}
	t.mu.Unlock()
	if err == nil {
		return account, nil
	}
	if took {
		account.Give(quota.Clients, size)
	}
	account.Close()
	if t.refused != nil {
		t.refused(id, err)
	}
	return nil, err
}

func (t *clientTable) remove(id config.Identity, account *quota.Account, size int64) {
	account.Give(quota.Clients, size)
	account.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.byUser[id.UID]--; t.byUser[id.UID] == 0 {
		delete(t.byUser, id.UID)
	}
}

// authInfo is what handlers find in peer.FromContext.
type authInfo struct {
	credentials.CommonAuthInfo
	config.Identity
	refused error // why nothing is done for this connection; nil: it is served
}

func (authInfo) AuthType() string { return "rdsd-peercred" }

func (c *peerCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	id, level, err := identify(conn)
	if err != nil {
		return c.refuse(conn, id, level, err)
	}
	account, err := c.clients.add(id, connBytes)
	if err != nil {
		return c.refuse(conn, id, level, err)
	}
	release := func() { c.clients.remove(id, account, connBytes) }
	return c.calls.wrap(c.measured(conn, id), id, account, release), authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id, nil}, nil
}

// refuse lets a connection live for a moment in which every call is told why there
// is no more for it: an error here would be a connection that breaks. With several of
// those under way it is one; grpc closes conn then.
func (c *peerCreds) refuse(conn net.Conn, id config.Identity, level credentials.SecurityLevel, err error) (net.Conn, credentials.AuthInfo, error) {
	if c.refusals.Add(1) > maxRefusals {
		c.refusals.Add(-1)
		return nil, nil, err
	}
	end := time.AfterFunc(refusedLife, func() {
		defer c.guard.Recover(guard.Call, nil)
		conn.Close()
	})
	account := c.clients.memory.Account(quota.User(id.UID)) // for what it sends meanwhile
	release := func() { end.Stop(); c.refusals.Add(-1); account.Close() }
	return c.calls.wrap(c.measured(conn, id), id, account, release), authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id, base.NoDescriptors(err)}, nil
}

// measured ends a client's connection when it is too costly to be woken.
func (c *peerCreds) measured(conn net.Conn, id config.Identity) net.Conn {
	return toll.Wrap(conn, func(why error) { c.calls.count.CostlyClient(c.calls.log, id, why) })
}

// refusedLife is how long a refused connection lives.
const refusedLife = 500 * time.Millisecond

// identify asks the kernel who is at the other end.
func identify(conn net.Conn) (config.Identity, credentials.SecurityLevel, error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}, credentials.NoSecurity, nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return config.Identity{}, 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return config.Identity{}, 0, fmt.Errorf("peer credentials: %w", err)
	}
	return config.Identity{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, credentials.PrivacyAndIntegrity, nil
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
