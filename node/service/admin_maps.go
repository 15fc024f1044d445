package service

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"slices"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// maxMaps bounds the maps of an answer: each may have 8 KiB.
const maxMaps = 64

// portMap is a map that may be listed.
type portMap struct {
	h     *datagram.Local
	of    *rds.Peer
	addr  netip.Addr
	local bool
	ports int
}

// ListCongestionMaps brings which ports are congested, all of them: as bits they take
// little where a list of what is known of each has to be bounded.
func (a *adminServer) ListCongestionMaps(_ context.Context, r *rdsdv1.ListCongestionMapsRequest) (*rdsdv1.ListCongestionMapsResponse, error) {
	remote, err := optionalAddr("remote", r.GetRemote())
	if err != nil {
		return nil, err
	}
	// Which nodes have most is known first, so that no more maps are copied than are told.
	var found []portMap
	for _, h := range a.front.deps.Host.Locals() {
		note := func(pe *rds.Peer, local bool) {
			if n := pe.CongestedPorts(); n > 0 && (!remote.IsValid() || pe.Addr() == remote) {
				found = append(found, portMap{h, pe, pe.Addr(), local, n})
			}
		}
		note(h.Look().Self(), true)
		h.Unlook()
		h.EachPeer(func(_ *rds.Engine, pe *rds.Peer) { note(pe, false) })
	}
	slices.SortStableFunc(found, func(a, b portMap) int { return cmp.Compare(b.ports, a.ports) })
	told := found[:min(len(found), maxMaps)]
	var list []*rdsdv1.CongestionMap
	for i := range told {
		list = append(list, told[i].pb())
	}
	resp := &rdsdv1.ListCongestionMapsResponse{}
	resp.SetMap(list)
	resp.SetLeftOut(uint32(len(found) - len(told)))
	return resp, nil
}

// pb copies the map.
func (m *portMap) pb() *rdsdv1.CongestionMap {
	m.h.Look()
	ports := m.of.CongestedPorts()
	bits := m.of.AppendCongested(nil)
	m.h.Unlook()
	p := &rdsdv1.CongestionMap{}
	p.SetAddress(m.addr.AsSlice())
	p.SetLocal(m.local)
	p.SetSeenFrom(m.h.Addr().AsSlice())
	p.SetPorts(uint32(ports))
	if bits = bytes.TrimRight(bits, "\x00"); len(bits) > 0 { // else it has cleared meanwhile
		all := len(bits)
		bits = bytes.TrimLeft(bits, "\x00")
		p.SetFirstPort(uint32(all-len(bits)) * 8)
		p.SetBitmap(bits)
	}
	return p
}
