package service

import (
	"net/netip"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
)

// portsOf are the ports that a map has.
func portsOf(m *rdsdv1.CongestionMap) map[int]bool {
	set := map[int]bool{}
	for i, b := range m.GetBitmap() {
		for bit := range 8 {
			if b&(1<<bit) != 0 {
				set[int(m.GetFirstPort())+i*8+bit] = true
			}
		}
	}
	return set
}

// TestEveryPortIsTold: of every node that has congested ports each of its 65,536 is told,
// also where there are more than a list has, and of nodes those with most.
func TestEveryPortIsTold(t *testing.T) {
	n := startWorld(t, func(*config.Config) {})
	h := n.hosts.Locals()[0]
	peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 77, 9, byte(i)}) }
	want := map[netip.Addr]map[int]bool{peer(0): {}, peer(1): {0: true, 65535: true}, peer(2): {4001: true}, h.Addr(): {}}
	e, now := h.Lock()
	for i := range 70 {
		pe, err := e.Peer(peer(i))
		if err != nil {
			t.Fatal(err)
		}
		bits := make([]byte, 8192)
		switch {
		case i == 0: // all but one
			for p := range 65536 {
				want[peer(0)][p] = p != 777
				if p != 777 {
					bits[p/8] |= 1 << (p % 8)
				}
			}
			delete(want[peer(0)], 777)
		case i < 3:
			for p := range want[peer(i)] {
				bits[p/8] |= 1 << (p % 8)
			}
		case i == 3: // nothing
		default:
			bits[100] = 3
		}
		pe.CongestionMap(now, bits)
	}
	own, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 1024})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		_ = sender.Send(now, own.Addr(), make([]byte, 512), 1, rds.Quiet) // until it is congested
	}
	want[h.Addr()][int(own.Addr().Port())] = true
	h.Unlock()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		e, _ := h.Lock()
		full := e.Self().CongestedPorts() == 1
		h.Unlock()
		if full {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the port of this node is not congested")
		}
	}

	a := &adminServer{front: n.services}
	all, err := a.ListCongestionMaps(t.Context(), &rdsdv1.ListCongestionMapsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// 69 peers have congested ports, and this node.
	if len(all.GetMap()) != maxMaps || all.GetLeftOut() != 70-maxMaps || all.GetMap()[0].GetPorts() != 65535 {
		t.Errorf("%d maps, %d left out, %d ports in the first", len(all.GetMap()), all.GetLeftOut(), all.GetMap()[0].GetPorts())
	}
	// The list has a part of them and says of how many the rest is.
	every := uint64(66 * 2) // of the peers that want has not
	for _, ports := range want {
		every += uint64(len(ports))
	}
	list, err := a.ListCongestion(t.Context(), &rdsdv1.ListCongestionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := uint64(len(list.GetPort())); n == 0 || list.GetLeftOut() == 0 || n+list.GetLeftOut() != every {
		t.Errorf("%d ports are listed and %d left out, of %d", n, list.GetLeftOut(), every)
	}
	for addr, ports := range want {
		req := &rdsdv1.ListCongestionMapsRequest{}
		req.SetRemote(addr.AsSlice())
		r, err := a.ListCongestionMaps(t.Context(), req)
		if err != nil || len(r.GetMap()) != 1 {
			t.Fatalf("of %v: %v, %v", addr, r, err)
		}
		m := r.GetMap()[0]
		got := portsOf(m)
		if len(got) != len(ports) || int(m.GetPorts()) != len(ports) || m.GetLocal() != (addr == h.Addr()) || m.GetFirstPort()%8 != 0 {
			t.Errorf("of %v: %d ports in the map, %d said, local %v; want %d", addr, len(got), m.GetPorts(), m.GetLocal(), len(ports))
		}
		for p := range ports {
			if !got[p] {
				t.Fatalf("of %v: port %d is missing", addr, p)
			}
		}
		if addr == peer(2) && len(m.GetBitmap()) != 1 {
			t.Errorf("one port takes %d bytes", len(m.GetBitmap()))
		}
	}
	req := &rdsdv1.ListCongestionMapsRequest{}
	req.SetRemote(peer(3).AsSlice())
	if r, err := a.ListCongestionMaps(t.Context(), req); err != nil || len(r.GetMap()) != 0 {
		t.Errorf("of one without: %v, %v", r, err)
	}
}
