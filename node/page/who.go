package page

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// Who asks is told by the kernel, as for the API: of a Unix socket by the socket, of TCP
// on this machine by whose socket the other end is. From anywhere else nobody knows.

type (
	connKey   struct{}
	callerKey struct{}
)

// caller is what is known of the other end of a connection; the kernel is asked once.
type caller struct {
	conn net.Conn
	once sync.Once
	id   config.Identity
	err  error
}

// ConnContext is http.Server.ConnContext: it lets a request find its connection.
func (p *Page) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, &caller{conn: c})
}

// callerOf returns who an admitted request is from.
func callerOf(r *http.Request) config.Identity {
	id, ok := r.Context().Value(callerKey{}).(config.Identity)
	if !ok {
		return config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	}
	return id
}

// caller returns who asks, or why that one may not.
func (p *Page) caller(r *http.Request) (config.Identity, error) {
	c, ok := r.Context().Value(connKey{}).(*caller)
	if !ok {
		return config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}, rdserr.With(rdserr.ErrPerm, "nothing is known of the connection")
	}
	c.once.Do(func() { c.id, c.err = Identify(c.conn) })
	if c.err != nil {
		return c.id, rdserr.With(rdserr.ErrPerm, "%v", c.err)
	}
	return c.id, p.mayLook(c.id, c.conn)
}

// Identify asks the kernel who is at the other end of a connection, also of one over
// loopback; one from elsewhere is nobody's (config.Identity.Remote).
func Identify(c net.Conn) (config.Identity, error) {
	id, err := access.Identify(c)
	remote, isTCP := addrPort(c.RemoteAddr())
	if err != nil || !isTCP || !netlocal.IsLocal(remote.Addr()) {
		return id, err
	}
	local, _ := addrPort(c.LocalAddr())
	uid, err := netlocal.Owner(local, remote)
	if err != nil {
		return id, fmt.Errorf("the kernel does not tell whose connection this is: %w", err)
	}
	return access.OfUser(uid), nil
}

func addrPort(a net.Addr) (netip.AddrPort, bool) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), true
}

// mayLook refuses whom the API's socket would not let in. Of a Unix socket the file
// system has decided that already.
func (p *Page) mayLook(id config.Identity, c net.Conn) error {
	conf := p.Conf()
	if _, ok := c.(*net.UnixConn); ok {
		return nil
	}
	if id.Remote {
		if conf.API.Insecure {
			return nil
		}
		return rdserr.With(rdserr.ErrPerm, "the page is for users of this machine: nothing tells who you are. Use ssh -L, or set api.insecure to show it to everybody who can connect")
	}
	self := uint32(os.Geteuid())
	mode := conf.API.SocketMode.Perm
	switch {
	case conf.IsAdmin(id, self), mode&0o002 != 0:
		return nil
	case mode&0o020 != 0 && !id.ForeignUser && p.groups.member(id.UID, conf.API.SocketGroup, time.Now()):
		return nil
	}
	return rdserr.With(rdserr.ErrPerm, "uid %d may not use the daemon's socket, and so may not look here: join the group of %s (api.socket_group) and log in anew, or be one of api.admin_uids%s", id.UID, conf.API.Socket, id.NoName())
}

const (
	groupsKept = 256
	groupsAge  = 10 * time.Second
)

// groupCache knows for a moment who is a member of the socket's group: to find that
// out files are read.
type groupCache struct {
	mu      sync.Mutex
	seen    map[uint32]membership // guarded by mu
	holders holders
}

type membership struct {
	is bool
	at time.Time
}

func (g *groupCache) member(uid uint32, group string, now time.Time) bool {
	g.mu.Lock()
	m, ok := g.seen[uid]
	g.mu.Unlock()
	if ok && now.Sub(m.at) < groupsAge {
		return m.is
	}
	m = membership{g.find(uid, group, now), now}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil || len(g.seen) >= groupsKept {
		g.seen = map[uint32]membership{}
	}
	g.seen[uid] = m
	return m.is
}

// find finds out whether uid is a member: by the files, or by a process of that user.
func (g *groupCache) find(uid uint32, group string, now time.Time) bool {
	gid := os.Getegid()
	if group != "" {
		var err error
		if gid, err = config.LookupGroup(group); err != nil {
			return false
		}
	}
	// Root's own group is that of processes in containers, whoever their user is.
	return isMember(uid, gid) || gid != 0 && g.holders.has(uid, gid, now)
}

// isMember asks /etc/passwd and /etc/group.
func isMember(uid uint32, gid int) bool {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return false
	}
	ids, err := u.GroupIds()
	if err != nil {
		return false
	}
	for _, id := range ids {
		if id == strconv.Itoa(gid) {
			return true
		}
	}
	return false
}
