package peers

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Which transport a peer is reached by is chosen here. Today that is TCP for everybody, by
// links that carry frames (datagrams) and by one-sided ones (volumes). A further transport
// is made in Open, and Frames and OneSided choose, by the peer's address, in their Dial.

// Open makes the transports, whose links the reactors serve.
func (r *Registry) Open(reactors []*reactor.Reactor) {
	c := r.deps.Config
	links := tcp.New(reactors...)
	links.BufferBytes = int(c.RDS.TCPBufferBytes)
	links.Log, links.AcceptFailed, links.Reserve = r.deps.Log, &r.deps.Count.AcceptErrors, r.deps.FDs.Reserve
	links.Guard = r.deps.Guard
	links.Room = func() error { return r.deps.FDs.Room(base.LinkFDs, base.KeepOfLinks) }
	if name := c.RDS.TCPCongestion; name != "" {
		if err := tcp.CheckCongestion(name); err != nil {
			r.deps.Log.Warn("rds.tcp_congestion cannot be had, TCP keeps the kernel's default", "name", name, "err", err)
		} else {
			links.Congestion = name
		}
	}
	links.Check = r.CheckDialled
	r.links = links
}

// Frames is what datagrams make links with, once Open has returned. Its owner asks
// MayPeer, CheckDialled and Admit itself, because what it does with the answer depends on
// what the connection is for: to poke a peer, or to be one of its lanes.
func (r *Registry) Frames() transport.Provider { return r.links }

// OneSided is what volumes make links with, once Open has returned. It lets only peers
// that are allowed for volumes connect, and tells others why not.
func (r *Registry) OneSided() transport.OneSidedProvider { return &oneSided{r.links, r} }

// oneSided is the registry between volumes and a transport.
type oneSided struct {
	*tcp.Provider
	r *Registry
}

var errNoVolumePeer = errors.New("it is not an allowed peer; allow it with a [[peers]] entry of the configuration, and in volumes.allow if there is a list")

// ListenOneSided implements transport.OneSidedProvider. A peer that is refused hears so in
// the answer to its request to connect, so that its administrator finds the reason there.
func (l *oneSided) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return l.Provider.ListenOneSided(local, func(q transport.ConnRequest) {
		why := errNoVolumePeer
		if l.r.MayPeerVolumes(q.RemoteAddr().Addr()) {
			why = l.r.CheckAccepted(q.LocalAddr(), q.RemoteAddr())
		}
		if why == nil {
			accept(q)
			return
		}
		l.r.Refuse("connection for volumes", q.RemoteAddr().Addr(), why.Error())
		no := rtrswire.Reject(uint16(refusalErrno(why)))
		q.Reject(no.Append(nil))
	})
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
