package peers

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

var errNoVolumePeer = errors.New("it is not an allowed peer; allow it with a [[peers]] entry of the configuration, and in volumes.allow if there is a list")

// admitOneSided is the Admit of the listeners for volumes (tcp.Provider.Admit). The kernel
// is asked once whose the connection is: that decides for whom it counts, and whether it
// may be a peer. A connection that may not be one is read until its request is whole, and
// has a slot meanwhile: unlike a peer of datagrams, which is closed at once, a peer of
// volumes hears why it is refused, so that its administrator finds the reason there.
func (r *Registry) admitOneSided(local, remote netip.AddrPort, abort func()) (said func(transport.ConnRequest) bool, err error) {
	refuse := func(why error) { r.Refuse("connection for volumes", remote.Addr(), why.Error()) }
	why, user := errNoVolumePeer, NoUser
	if r.MayPeerVolumes(remote.Addr()) {
		user, why = r.AcceptedFrom(local, remote)
	}
	x, err := r.Admit(time.Now(), remote.Addr(), user, abort)
	if err != nil {
		refuse(err)
		return nil, err
	}
	return func(q transport.ConnRequest) bool {
		x.End()
		// The rules may have changed since: the peer says when its request comes.
		if q != nil && why == nil {
			why = r.mayStill(remote, user)
		}
		if q != nil && why != nil {
			refuse(why)
			no := rtrswire.Reject(uint16(refusalErrno(why)))
			q.Reject(no.Append(nil))
		}
		return why == nil
	}, nil
}

// mayStill is why a peer for volumes that was let in when its connection came, as user if it is on
// this machine, may not be one by the rules as they are now; nil: it may.
func (r *Registry) mayStill(remote netip.AddrPort, user int64) error {
	if !r.MayPeerVolumes(remote.Addr()) {
		return errNoVolumePeer
	}
	if user == NoUser {
		return nil
	}
	return r.mayBePeer(remote.Addr(), uint32(user))
}

// judged is a transport whose peers are judged when they ask to connect: it has no handshakes
// that could be counted before, because the request is its first message.
type judged struct {
	pacedOneSided
	owner func(local, remote netip.AddrPort) (uid uint32, err error)
}

// ListenOneSided implements transport.OneSidedProvider.
func (p *judged) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return p.OneSidedProvider.ListenOneSided(local, func(q transport.ConnRequest) {
		if why := p.judge(q.LocalAddr(), q.RemoteAddr()); why != nil {
			p.r.Refuse("connection for volumes", q.RemoteAddr().Addr(), why.Error())
			no := rtrswire.Reject(uint16(refusalErrno(why)))
			q.Reject(no.Append(nil))
			return
		}
		accept(q)
	})
}

// DialOneSided implements transport.OneSidedProvider.
func (p *judged) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	l, rsp, err := p.pacedOneSided.DialOneSided(ctx, local, remote, d, attr, private)
	if err != nil {
		return nil, rsp, err
	}
	if err := p.who(l.LocalAddr(), l.RemoteAddr()); err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, rsp, nil
}

func (p *judged) judge(local, remote netip.AddrPort) error {
	if !p.r.MayPeerVolumes(remote.Addr()) {
		return errNoVolumePeer
	}
	return p.who(local, remote)
}

func (p *judged) who(local, remote netip.AddrPort) error {
	return p.r.checkOwnerBy(p.owner, local, remote)
}

func (r *Registry) checkOwnerBy(owner func(local, remote netip.AddrPort) (uint32, error), local, remote netip.AddrPort) error {
	return r.checkOwner(remote, func() (uint32, error) {
		if owner == nil {
			return 0, errors.New("it cannot for this kind of link")
		}
		return owner(local, remote)
	})
}

// StillOneSided judges a link for volumes anew, when the rules have changed: whether it may go
// on. Whom this node connects to needs no rule, unless it is on this machine.
func (r *Registry) StillOneSided(via string, accepted bool, local, remote netip.AddrPort) bool {
	if accepted && !r.MayPeerVolumes(remote.Addr()) {
		return false
	}
	owner := netlocal.Owner
	for i := range r.others {
		if r.others[i].Name == via {
			owner = r.others[i].Owner
		}
	}
	return !r.Denies(remote.Addr(), r.checkOwnerBy(owner, local, remote))
}

// refusalErrno is what a peer is told that may not connect: EACCES, unless it was not
// judged, because the kernel had not the means to tell whose the connection is. Then
// it is told what was missing, and comes again.
func refusalErrno(why error) syscall.Errno {
	for _, want := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(why, want) {
			return want
		}
	}
	return syscall.EACCES
}
