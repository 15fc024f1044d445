package peers

import (
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
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
	links.Check, links.Admit = r.CheckDialled, r.admitOneSided
	r.links = links
}

// Frames is what datagrams make links with, once Open has returned. Its owner asks
// MayPeer, CheckDialled and Admit itself, because what it does with the answer depends on
// what the connection is for: to poke a peer, or to be one of its lanes.
func (r *Registry) Frames() transport.Provider { return &paced{r.links, r} }

// OneSided is what volumes make links with, once Open has returned. Peers that are not
// allowed for volumes are refused by its listeners (admitOneSided).
func (r *Registry) OneSided() transport.OneSidedProvider { return &paced{r.links, r} }
