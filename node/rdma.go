package node

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/peers"
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
	n.rdma = &rdma{}
	owed := &peerBytes{memory: n.deps.Memory, of: map[netip.Addr]*peerAccount{}}
	of := map[netip.Addr]transport.OneSidedProvider{}
	reactors := n.hosts.Reactors()
	for i, a := range c.RDS.Addresses {
		d, err := soft.Open(soft.Config{Addr: a, Reactor: reactors[i%len(reactors)], Charge: owed.charge, Log: n.deps.Log, Guard: n.deps.Guard})
		if err != nil {
			n.closeRDMA()
			return c.Failed("volumes.rdma", fmt.Errorf("volumes.rdma: a device of %v: %w", a, err))
		}
		p := ib.New(d)
		p.Guard, p.Charge = n.deps.Guard, owed.charge
		n.rdma.devices, n.rdma.links = append(n.rdma.devices, d), append(n.rdma.links, p)
		of[a.Unmap()] = p
	}
	// Of a peer on this machine the other end is not the connection's, of which the kernel knows
	// nothing, but the socket that has its address and the port of RoCEv2.
	n.peers.Use(peers.OneSidedTransport{Name: transportRDMA, Provider: peers.ByAddress(of), Port: c.Volumes.RDMAPort,
		Owner: func(_, remote netip.AddrPort) (uint32, error) {
			return netlocal.OwnerUDP(netip.AddrPortFrom(remote.Addr(), roceUDPPort))
		}})
	return nil
}

// closeRDMA ends the devices, whose links have ended, or end with them.
func (n *Node) closeRDMA() {
	r := n.rdma
	if n.rdma = nil; r == nil {
		return
	}
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

// charge takes n bytes for peer, or with n < 0 gives them back. It may be called with locks
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
