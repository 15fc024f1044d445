package node

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/node/service"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
)

// transportRDMA is the name of the transport of paths over RDMA, whatever makes their links.
const transportRDMA = "ib"

// roceUDPPort is where RoCEv2 is received.
const roceUDPPort = 4791

// rdma is the devices of a node, one for each of its addresses, and their links.
type rdma struct {
	devices []*soft.Device
	links   []*ib.Provider
}

// openRDMA makes the devices that volumes.rdma asks for, and has volumes use them beside TCP.
func (n *Node) openRDMA() error {
	c := n.deps.Config
	if c.Volumes.RDMA != config.RDMASoft {
		return nil
	}
	r := &rdma{}
	owed := &peerBytes{memory: n.deps.Memory, of: map[netip.Addr]*peerAccount{}}
	of, names := map[netip.Addr]transport.OneSidedProvider{}, map[netip.Addr]string{}
	reactors := n.hosts.Reactors()
	for i, a := range c.RDS.Addresses {
		d, err := soft.Open(soft.Config{Addr: a, Reactor: reactors[i%len(reactors)], NoGSO: c.Volumes.RDMAGSO == config.GSOOff, Buffer: config.RDMABuffer,
			Charge: owed.charge, Log: n.deps.Log, Guard: n.deps.Guard})
		if err != nil {
			r.close(n)
			return c.Failed("volumes.rdma", fmt.Errorf("volumes.rdma: a device of %v: %w", a, err))
		}
		p := ib.New(d)
		p.Guard, p.Charge, p.Local = n.deps.Guard, owed.charge, netlocal.IsLocal
		r.devices, r.links = append(r.devices, d), append(r.links, p)
		of[a.Unmap()], names[a.Unmap()] = p, d.Info().Name
	}
	// Of a peer on this machine the other end is not the connection's, of which the kernel knows
	// nothing, but the socket that has its address and the port of RoCEv2.
	n.peers.Use(peers.OneSidedTransport{Name: transportRDMA, Provider: peers.ByAddress(of), Port: c.Volumes.RDMAPort, Devices: names,
		Owner: func(_, remote netip.AddrPort) (uint32, error) {
			return netlocal.OwnerUDP(netip.AddrPortFrom(remote.Addr(), roceUDPPort))
		}})
	n.rdma.Store(r)
	n.deps.Log.Warn("volumes can be reached over RoCEv2, which neither encrypts nor proves who somebody is: whoever can send with a peer's address and learns its numbers speaks for it (volumes.rdma)",
		"local", c.RDS.Addresses, "port", c.Volumes.RDMAPort)
	return nil
}

// rdmaDevices is what metrics tell of the devices.
func (n *Node) rdmaDevices() (list []service.RDMADevice) {
	r := n.rdma.Load()
	if r == nil {
		return nil
	}
	for _, d := range r.devices {
		s := d.State()
		x := service.RDMADevice{Addr: s.Addr, MTU: s.MTU, QueuePairs: s.QueuePairs, Keys: s.Keys, Overrun: s.RecvOverrun}
		for _, c := range s.Counters {
			x.Counters = append(x.Counters, service.RDMACounter{Name: c.Name, Value: c.Value})
		}
		list = append(list, x)
	}
	return list
}

// closeRDMA ends the devices, whose links have ended, or end with them.
func (n *Node) closeRDMA() {
	if r := n.rdma.Swap(nil); r != nil {
		r.close(n)
	}
}

func (r *rdma) close(n *Node) {
	for i, d := range r.devices {
		r.links[i].Close()
		if err := d.Close(); err != nil {
			n.deps.Log.Warn("an RDMA device was not closed in order", "err", err)
		}
	}
}

// peerBytes charges peers for what devices keep for them.
type peerBytes struct {
	memory *quota.Node

	mu sync.Mutex // nothing but the accounts is called with it held
	of map[netip.Addr]*peerAccount
}

type peerAccount struct {
	*quota.Account
	bytes int // that are charged; with none the account is closed
}

// charge takes n bytes for peer, or with n < 0 gives them back; no peer is the node itself. It may be called with locks
// of links and devices held.
func (p *peerBytes) charge(peer netip.Addr, n int) error {
	peer = peer.Unmap().WithZone("")
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of[peer]
	if a == nil {
		a = &peerAccount{Account: p.memory.Account(quota.Peer(peer))}
		p.of[peer] = a
	}
	var err error
	if n < 0 {
		a.Give(quota.Peers, int64(-n))
		a.bytes += n
	} else if err = a.Take(quota.Peers, int64(n)); err == nil {
		a.bytes += n
	}
	if a.bytes == 0 {
		a.Close()
		delete(p.of, peer)
	}
	return err
}
