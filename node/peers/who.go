package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// Who may speak to this node: by the rule for the address (MayPeer), and for a connection
// by who is at its other end.

// MayPeer tells whether an address may be a peer, and whether it may be a kernel. One of
// our own addresses may be a peer whatever the rules say: datagrams from one address of
// this node to another take no other way.
func (r *Registry) MayPeer(addr netip.Addr) (allowed, kernel bool) {
	allowed, kernel = r.deps.Conf().PeerPolicy(addr)
	return allowed || slices.Contains(r.deps.Config.RDS.Addresses, addr.Unmap()), kernel
}

// MayPeerVolumes tells whether an address may be a peer for volumes: one that may be a
// peer, and that volumes.allow has, if it is a list.
func (r *Registry) MayPeerVolumes(addr netip.Addr) bool {
	if ok, _ := r.MayPeer(addr); !ok {
		return false
	}
	addr = addr.Unmap().WithZone("") // as the rules see it
	allow := r.deps.Config.Volumes.Allow
	return len(allow) == 0 || slices.ContainsFunc(allow, func(p config.Prefix) bool { return p.Contains(addr) })
}

// An address says which machine a peer is. When that is this machine it says
// nothing: every user may connect from any address of 127.0.0.0/8, to any
// address that is served here, and listen there. Then the peer is the user whose
// socket the other end is, which the kernel tells (Config.MayBePeer). If it does
// not, the answer is no.
//
// The kernel is asked once for each connection, on the goroutine that accepts or
// dials and never on a reactor's thread.

// CheckAccepted judges who connected from remote to local; nil: it may be a peer.
func (r *Registry) CheckAccepted(local, remote netip.AddrPort) error {
	_, err := r.AcceptedFrom(local, remote)
	return err
}

// AcceptedFrom is CheckAccepted that also tells whose connection it is: a user of
// this machine, or NoUser where the other end is not here or the kernel does not tell.
func (r *Registry) AcceptedFrom(local, remote netip.AddrPort) (user int64, err error) {
	user = NoUser
	err = r.checkOwner(remote, func() (uint32, error) {
		uid, err := netlocal.Owner(local, remote)
		if err == nil {
			user = int64(uid)
		}
		return uid, err
	})
	return user, err
}

// NoUser is no uid.
const NoUser int64 = -1

// CheckDialled judges who accepted our connection from local to remote. It waits
// for that, until ctx ends.
func (r *Registry) CheckDialled(ctx context.Context, local, remote netip.AddrPort) error {
	return r.checkOwner(remote, func() (uint32, error) { return netlocal.AcceptedBy(ctx, local, remote) })
}

func (r *Registry) checkOwner(remote netip.AddrPort, owner func() (uint32, error)) error {
	if !netlocal.IsLocal(remote.Addr()) {
		return nil // the rules for addresses have judged it
	}
	uid, err := owner()
	if err != nil {
		return fmt.Errorf("it is on this machine, and the kernel does not tell whose it is: %w", err)
	}
	return r.mayBePeer(remote.Addr(), uid)
}

// mayBePeer judges a user of this machine, of whom the kernel told the number.
func (r *Registry) mayBePeer(addr netip.Addr, uid uint32) error {
	return r.deps.Conf().MayBePeer(addr, config.Identity{UID: uid, ForeignUser: base.ForeignUser(uid)}, uint32(os.Geteuid()))
}

// Denies reports whether err, of a judgement of a link that was let in, says that its peer may
// not be one any more. Where the kernel did not tell whose the link is, for want of memory or of
// descriptors, nothing was judged, and it goes on; a link whose other end nobody holds ends by
// itself.
func (r *Registry) Denies(remote netip.Addr, err error) bool {
	if err == nil || errors.Is(err, netlocal.ErrGone) {
		return false
	}
	if errors.Is(err, rdserr.ErrPerm) {
		return true
	}
	r.deps.Log.Warn("link not judged by the new rules", "peer", remote, "why", err)
	return false
}
