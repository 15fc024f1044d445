package datagram

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
)

// Bounds of Figures. What there is more of is in the sums, and counted as left out.
const (
	FigurePorts   = 16 // congested ports of each side
	FigureFillers = 4  // senders of one port
	FigureSockets = 16
)

// Sides of a congested port.
const (
	SideReader = "reader" // a socket of this node does not read it
	SideSender = "sender" // a peer says so: sockets of this node may not send to it
)

// Figures is what the lanes, the sockets and the congested ports of a node come to, for
// those who watch it. However many there are, Figures has a bounded size.
type Figures struct {
	Lanes     map[string]int // by state
	Peers     []PeerFigures
	Congested map[string]int // ports, by side; of a peer of several addresses here once
	Ports     []PortFigures  // those congested for longest, of each side; of peers' those first that hold up sockets here
	Sockets   []SocketFigures
	Bound     int // sockets, of which Sockets are those that hold most
	Sums      SocketSums
}

// PeerFigures are those of one peer.
type PeerFigures struct {
	Local, Remote  netip.Addr
	LanesUp        int
	CongestedPorts int           // of the peer
	RoundTrip      time.Duration // smoothed; 0: not measured yet
}

// PortFigures are those of one congested port.
type PortFigures struct {
	Side     string
	Endpoint netip.AddrPort
	Age      time.Duration // for so long it has been congested, of a peer's port that concerns no socket here at least
	Blocked  uint64        // sends of this node refused or made to wait meanwhile
	Waiting  int           // sockets of this node that wait for it

	Known      bool // the reader is: always of a reader's side
	PortReader      // with FigureFillers at most
}

// SocketFigures are those of one socket.
type SocketFigures struct {
	Addr                 netip.AddrPort
	UID                  uint32
	RecvQueued, SendUsed uint64 // bytes
}

// SocketSums add up all sockets.
type SocketSums struct {
	RecvQueued, SendUsed               uint64 // bytes
	RecvDatagrams, Undecided, Awaiting uint64 // datagrams unread, without an outcome, not accepted yet
}

// Figures fills in f. The lock of an address is held for a page at a time.
func (a *Host) Figures(f *Figures) {
	f.Lanes = map[string]int{}
	for s := conn.Down; s <= conn.Error; s++ {
		f.Lanes[s.String()] = 0
	}
	f.Congested = map[string]int{SideReader: 0, SideSender: 0}
	var sockets top[SocketFigures]
	var here, there top[PortFigures]
	for _, h := range a.list {
		h.peerFigures(f)
		h.portFigures(f, &here, &there)
		h.socketFigures(f, &sockets)
	}
	most := map[netip.Addr]int{} // congested ports of peers, each of which tells all our addresses of the same
	for i := range f.Peers {
		if p := &f.Peers[i]; p.CongestedPorts > most[p.Remote] {
			f.Congested[SideSender] += p.CongestedPorts - most[p.Remote]
			most[p.Remote] = p.CongestedPorts
		}
	}
	f.Ports, f.Sockets = append(here.l, there.l...), sockets.l
	for i := range here.l {
		if h := a.byAddr[f.Ports[i].Endpoint.Addr()]; h != nil {
			h.fill(&f.Ports[i])
		}
	}
}

func (h *Local) peerFigures(f *Figures) {
	h.EachPeer(func(_ *rds.Engine, pe *rds.Peer) {
		p := PeerFigures{Local: h.addr, Remote: pe.Addr(), CongestedPorts: pe.CongestedPorts(), RoundTrip: pe.Conn().RTT()}
		pe.Conn().EachLane(func(cp *conn.Lane) {
			s := cp.State()
			f.Lanes[s.String()]++
			if s == conn.Up {
				p.LanesUp++
			}
		})
		f.Peers = append(f.Peers, p)
	})
}

func (h *Local) portFigures(f *Figures, here, there *top[PortFigures]) {
	h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
		p := PortFigures{Side: SideSender, Endpoint: c.Endpoint, Age: max(h.StepTime()-c.Since, 0), Blocked: c.Blocked, Waiting: c.Waiting}
		t := there
		weight := uint64(p.Age)
		switch {
		case c.Local:
			p.Side, t = SideReader, here
			f.Congested[SideReader]++
		case p.Blocked > 0 || p.Waiting > 0:
			// A peer may say of all its ports that they are congested, for as long as it likes: those that
			// hold up sockets here come first.
			weight |= 1 << 63
		}
		if !t.wants(weight, FigurePorts) {
			return
		}
		p.Known, p.PortReader = c.Reader != nil, ReaderThere(c.Reader, FigureFillers)
		t.add(weight, p, FigurePorts)
	}, nil)
}

// fill says who should read one of this node's ports and who fills it.
func (h *Local) fill(p *PortFigures) {
	if r, ok := h.Reader(p.Endpoint.Port(), FigureFillers); ok { // else it was closed meanwhile
		p.Known, p.PortReader = true, r
	}
}

func (h *Local) socketFigures(f *Figures, sockets *top[SocketFigures]) {
	h.EachSocket(func(_ *rds.Engine, s *rds.Socket) {
		i := s.Info()
		k := SocketFigures{Addr: s.Addr(), UID: s.Options().UID, RecvQueued: uint64(max(i.RecvQueued, 0)), SendUsed: uint64(max(i.SendQueued, 0))}
		f.Bound++
		f.Sums.RecvQueued += k.RecvQueued
		f.Sums.SendUsed += k.SendUsed
		f.Sums.RecvDatagrams += uint64(max(i.RecvN, 0))
		f.Sums.Undecided += uint64(max(i.Undecided, 0))
		f.Sums.Awaiting += uint64(max(i.Waiting, 0))
		// A socket with nothing in its queues is no news.
		if n := k.RecvQueued + k.SendUsed; n > 0 {
			sockets.add(n, k, FigureSockets)
		}
	})
}

// top keeps the few that weigh most, the heaviest first.
type top[T any] struct {
	l       []T
	weights []uint64 // of l
}

// wants reports whether something of this weight would be kept.
func (t *top[T]) wants(weight uint64, most int) bool {
	return len(t.l) < most || weight > t.weights[len(t.l)-1]
}

func (t *top[T]) add(weight uint64, v T, most int) {
	if !t.wants(weight, most) {
		return
	}
	// Behind those of the same weight: what came first stays.
	i, _ := slices.BinarySearchFunc(t.weights, weight, func(have, want uint64) int {
		if have >= want {
			return -1
		}
		return cmp.Compare(want, have)
	})
	t.l, t.weights = slices.Insert(t.l, i, v), slices.Insert(t.weights, i, weight)
	t.l, t.weights = t.l[:min(len(t.l), most)], t.weights[:min(len(t.weights), most)]
}
