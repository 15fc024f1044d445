package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/rdserr"
)

// Identity is who a client is: what the kernel says of the other end of the
// Unix socket when it connected (SO_PEERCRED). Remote clients have none.
type Identity struct {
	UID, GID uint32
	PID      int32 // 0 in another pid namespace
	Remote   bool  // came over the remote listener; UID and GID are NobodyID
	// ForeignUser and ForeignGroup: UID, or GID, stands for all that have no number in the
	// daemon's user namespace. It tells nobody from others, and gives no right.
	ForeignUser, ForeignGroup bool
}

// known tells whether the kernel said which user that is.
func (id Identity) known() bool { return !id.Remote && !id.ForeignUser }

// NoName is what errors say of a user that is not known; "" for others.
func (id Identity) NoName() string {
	if !id.ForeignUser {
		return ""
	}
	return fmt.Sprintf(" (%d stands for all users that have no number in the daemon's user namespace, so that it gets no rights: give this one a number there, or run both in one)", id.UID)
}

// NobodyID is the user and group of a client without identity.
const NobodyID = 65534

// MayBind tells whether a client may bind an RDS port; nil is yes. Root may
// bind any. Of port 0 (any free port) it says yes; which that may be Bindable says.
//
//   - A grant that covers the port and names the client's uid or gid allows it.
//   - Otherwise a port of an exclusive range is refused,
//   - and so is one below rds.low_ports_below.
//   - Everything else is free for all.
func (c *Config) MayBind(id Identity, port uint16) error {
	if id.UID == 0 && id.known() {
		return nil
	}
	exclusive := false
	for i := range c.Ports {
		g := &c.Ports[i]
		if !g.Range.Contains(port) {
			continue
		}
		if g.names(id) {
			return nil
		}
		exclusive = exclusive || g.Exclusive
	}
	switch {
	case exclusive:
		return rdserr.With(rdserr.ErrPerm, "port %d belongs to another user; uid %d needs a [[ports]] grant for it, or take a port outside the granted ranges%s", port, id.UID, id.NoName())
	case port < c.RDS.LowPortsBelow && port != 0:
		return rdserr.With(rdserr.ErrPerm, "port %d is below %d (rds.low_ports_below); uid %d needs a [[ports]] grant for it, or take a higher port%s", port, c.RDS.LowPortsBelow, id.UID, id.NoName())
	}
	return nil
}

// names tells whether the grant is that client's.
func (g *PortGrant) names(id Identity) bool {
	return !id.Remote && (g.UID != nil && *g.UID == id.UID && !id.ForeignUser || g.GID != nil && *g.GID == id.GID && !id.ForeignGroup)
}

// IsAdmin tells whether a client may change things through the Admin service.
// self is the uid the daemon runs as.
func (c *Config) IsAdmin(id Identity, self uint32) bool {
	if !id.known() {
		return false
	}
	if id.UID == 0 || id.UID == self {
		return true
	}
	for _, uid := range c.API.AdminUIDs {
		if uid == id.UID {
			return true
		}
	}
	return false
}

// PeerPolicy tells whether an address may be a peer, and whether it may be a
// kernel, which cannot prove who it is. Loopback may be both unless a rule
// says otherwise; every other address needs a rule. The longest prefix decides.
// Of an address of this machine MayBePeer has the last word.
func (c *Config) PeerPolicy(addr netip.Addr) (allowed, kernel bool) {
	addr = addr.Unmap().WithZone("")
	if r := c.peerRule(addr); r != nil {
		return !r.Deny, r.Kernel && !r.Deny
	}
	return addr.IsLoopback(), addr.IsLoopback()
}

// MayBePeer tells whether the user id of this machine may be the peer at addr, an
// address of this machine; nil is yes. Root and the daemon's own user, self, may;
// others need the rule that decides over addr to name them: a rule that allows a
// network lets nobody in who happens to be here.
func (c *Config) MayBePeer(addr netip.Addr, id Identity, self uint32) error {
	if id.known() && (id.UID == 0 || id.UID == self) {
		return nil
	}
	if r := c.peerRule(addr.Unmap().WithZone("")); r != nil && !r.Deny && id.known() && slices.Contains(r.UIDs, id.UID) {
		return nil
	}
	return rdserr.With(rdserr.ErrPerm, "it is on this machine and user %d's, who is no peer; name the user in uids of a [[peers]] rule for %v%s", id.UID, addr, id.NoName())
}

// peerRule is the rule that decides over addr, nil when there is none.
func (c *Config) peerRule(addr netip.Addr) (rule *PeerRule) {
	for i := range c.Peers {
		r := &c.Peers[i]
		if (rule == nil || r.Address.Bits() > rule.Address.Bits()) && r.Address.Contains(addr) {
			rule = r
		}
	}
	return rule
}

// Lonely tells whether a node with addresses beyond loopback allows no peer
// beyond loopback, which is legal and hardly ever meant.
func (c *Config) Lonely() bool {
	beyond := false
	for _, a := range c.RDS.Addresses {
		beyond = beyond || !a.IsLoopback()
	}
	if !beyond {
		return false
	}
	for i := range c.Peers {
		if r := &c.Peers[i]; !r.Deny && !r.Address.Addr().IsLoopback() {
			return false
		}
	}
	return true
}
