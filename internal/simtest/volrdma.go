package simtest

import (
	"context"
	"net/netip"

	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/transport"
)

// volRDMA makes the links of a process that go over its devices, as the daemon does, and sees
// which memory they may touch.
type volRDMA struct {
	transport.OneSidedProvider
	p *volProcess
}

var _ transport.OneSidedProvider = (*volRDMA)(nil)

// rdma is the transport of paths over the devices of a process.
func (p *volProcess) rdma() volume.Transport {
	of, names := map[netip.Addr]transport.OneSidedProvider{}, map[netip.Addr]string{}
	for _, x := range p.devices {
		of[x.nic.Addr], names[x.nic.Addr] = x.links, x.dev.Info().Name
	}
	return volume.Transport{Name: volume.TransportIB, Provider: &volRDMA{peers.ByAddress(of), p}, Devices: names}
}

func (r *volRDMA) NewDomain() transport.Domain {
	d := &volDomain{r.OneSidedProvider.NewDomain().(transport.Guarded), map[uint32]*byte{}}
	r.p.domains = append(r.p.domains, d)
	return d
}

func (r *volRDMA) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	k, rsp, err := r.OneSidedProvider.DialOneSided(ctx, local, remote, d.(*volDomain).Guarded, attr, private)
	if err != nil {
		return nil, nil, err
	}
	return r.p.newLink(k, d.(*volDomain)), rsp, nil
}

func (r *volRDMA) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return r.OneSidedProvider.ListenOneSided(local, func(q transport.ConnRequest) { accept(&volRequest{q, r.p, local}) })
}
