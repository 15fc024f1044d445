package peers

import (
	"net/netip"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// Which transport a peer is reached by is chosen here. For links that carry frames
// (datagrams) that is TCP for everybody: a further one is made in Open, and Frames chooses, by
// the peer's address, in its Dial. One-sided links (volumes) are made over transports with a
// name, of which each path of a session has one: TCP, and what Use was called with.

// OneSidedTransport is a kind of one-sided links.
type OneSidedTransport struct {
	Name     string // as in the path of a volume
	Provider transport.OneSidedProvider
	Port     uint16 // where peers listen that name no port; 0: volumes.port
	// Owner tells who on this machine the other end of a link is, as the kernel knows it. nil:
	// nobody can tell, and nobody on this machine may be a peer over it.
	Owner func(local, remote netip.AddrPort) (uid uint32, err error)
	// Devices are the names of the devices that make the links, by their address; nil: there are
	// none.
	Devices map[netip.Addr]string
}

// Use adds a transport of one-sided links. It is called before OneSided.
func (r *Registry) Use(t OneSidedTransport) { r.others = append(r.others, t) }

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

// OneSided is what volumes make links with, once Open has returned: TCP, and the others.
// Peers that are not allowed for volumes are refused by their listeners (admitOneSided,
// judged).
func (r *Registry) OneSided() []OneSidedTransport {
	list := []OneSidedTransport{{Name: "tcp", Provider: &pacedOneSided{r.links, r}}}
	for _, t := range r.others {
		t.Provider = &judged{pacedOneSided{t.Provider, r}, t.Owner}
		list = append(list, t)
	}
	return list
}
