package datagram

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/wire"
)

// TestFigures: the figures say which port is congested, who should read it, who fills it
// and who waits; the sums are of all sockets, whichever are shown.
func TestFigures(t *testing.T) {
	s := newSeam(t, nil)
	e, now := s.h.Lock()
	reader, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 4096, UID: 7, PID: 77})
	if err != nil {
		t.Fatal(err)
	}
	var senders []*rds.Socket
	for range FigureFillers + 2 {
		k, err := e.Bind(0, rds.SocketOptions{UID: 8})
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, k)
	}
	for i := 0; ; i++ {
		if senders[i%len(senders)].Send(now, reader.Addr(), make([]byte, 512), 1, false) != nil {
			break
		}
	}
	for range FigureSockets + 5 {
		if _, err := e.Bind(0, rds.SocketOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pe, err := e.Peer(seamHigher)
	if err != nil {
		t.Fatal(err)
	}
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	pe.CongestionMap(now, full)
	// One of its ports holds up a socket here.
	const held = 50000
	if _, err := senders[0].Open(pe.AddrPort(held), nil); err != nil {
		t.Fatal(err)
	}
	if senders[0].Send(now, pe.AddrPort(held), nil, 2, false) == nil {
		t.Fatal("a congested port took a datagram")
	}
	want := uint64(reader.Info().RecvQueued)
	bound := len(e.Bound())
	s.h.Unlock()

	var f Figures
	s.a.Figures(&f)
	if f.Congested[SideReader] != 1 || f.Congested[SideSender] != 65536 || len(f.Ports) != 1+FigurePorts {
		t.Fatalf("congested %v, %d ports shown", f.Congested, len(f.Ports))
	}
	p := f.Ports[0]
	if p.Side != SideReader || p.Endpoint != reader.Addr() || !p.Known || p.UID != 7 || p.PID != 77 || p.QueuedBytes != want || want == 0 {
		t.Errorf("the port: %+v, %d bytes are queued", p, want)
	}
	if len(p.Fillers) != FigureFillers || p.Blocked == 0 {
		t.Errorf("%d fillers, %d sends blocked", len(p.Fillers), p.Blocked)
	}
	if p := f.Ports[1]; p.Endpoint.Port() != held || p.Blocked != 1 {
		t.Errorf("the first port of peers: %+v", p)
	}
	if f.Bound != bound || f.Sums.RecvQueued != want || f.Sums.RecvDatagrams != want/512 || len(f.Sockets) == 0 || f.Sockets[0].Addr != reader.Addr() {
		t.Errorf("%d sockets, sums %+v, shown %+v", f.Bound, f.Sums, f.Sockets)
	}
	if len(f.Peers) != 1 || f.Peers[0].CongestedPorts != 65536 || f.Peers[0].Remote != seamHigher {
		t.Errorf("peers %+v", f.Peers)
	}
}

// TestFiguresOfALongQueue: of a queue that is looked at in part the senders are told with what they have of
// all of it.
func TestFiguresOfALongQueue(t *testing.T) {
	s := newSeam(t, nil)
	e, now := s.h.Lock()
	reader, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var from [2]*rds.Socket
	for i := range from {
		if from[i], err = e.Bind(0, rds.SocketOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; ; i++ { // three of four are of one
		if from[(i%4)/3].Send(now, reader.Addr(), make([]byte, 64), 1, false) != nil {
			break
		}
	}
	n := reader.Info().RecvN
	s.h.Unlock()
	if n < 10000 {
		t.Fatalf("%d datagrams are queued", n)
	}
	var f Figures
	s.a.Figures(&f)
	p := f.Ports[0]
	if len(p.Fillers) != 2 || p.QueuedBytes != uint64(64*n) {
		t.Fatalf("%+v", p)
	}
	for i, k := range p.Fillers {
		want := n * (3 - 2*i) / 4
		if k.Source != from[i].Addr() || k.N < want-10 || k.N > want+10 || k.Bytes < 64*(want-10) || k.Bytes > 64*(want+10) {
			t.Errorf("sender %d of %d datagrams: %+v, want about %d", i, n, k, want)
		}
	}
}

// TestFiguresOfTwoAddresses: the congested ports of a peer that is linked with two addresses are counted once.
func TestFiguresOfTwoAddresses(t *testing.T) {
	s := newSeam(t, nil)
	s.a.list = append(s.a.list, newLocal(s.a, netip.MustParseAddr("203.0.113.4"), 1))
	for i, h := range s.a.list {
		e, now := h.Lock()
		pe, err := e.Peer(seamHigher)
		if err == nil {
			for port := range uint16(3 + i) { // the second has heard of one more
				pe.CongestionDelta(now, wire.PortState{Port: 4000 + port, Congested: true})
			}
			pe, err = e.Peer(seamLower)
		}
		if err == nil {
			pe.CongestionDelta(now, wire.PortState{Port: 4000, Congested: true})
		}
		h.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	var f Figures
	s.a.Figures(&f)
	if n := f.Congested[SideSender]; n != 5 || len(f.Peers) != 4 {
		t.Errorf("%d ports of two peers are congested, want 5; %+v", n, f.Peers)
	}
}

func TestTop(t *testing.T) {
	var got top[netip.Addr]
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	for _, n := range []byte{3, 9, 1, 7, 9, 2} {
		got.add(uint64(n), addr(n), 3)
	}
	for i, n := range []byte{9, 9, 7} {
		if len(got.l) != 3 || got.l[i] != addr(n) {
			t.Fatalf("kept %v", got.l)
		}
	}
	if got.wants(7, 3) || !got.wants(8, 3) {
		t.Error("what is no heavier than the lightest makes no room for itself")
	}
}

// TestIdleSocketsAreNoNews: a socket with nothing in its queues is counted, and not listed.
func TestIdleSocketsAreNoNews(t *testing.T) {
	s := newSeam(t, nil)
	e, now := s.h.Lock()
	var list []*rds.Socket
	for range 3 {
		k, err := e.Bind(0, rds.SocketOptions{UID: 7})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, k)
	}
	if err := list[0].Send(now, list[1].Addr(), []byte("x"), 1, false); err != nil {
		t.Fatal(err)
	}
	s.h.Unlock()
	var f Figures
	s.a.Figures(&f)
	if f.Bound != 3 || f.Sums.RecvQueued != 1 || f.Sums.RecvDatagrams != 1 || len(f.Sockets) != 1 || f.Sockets[0].Addr != list[1].Addr() {
		t.Errorf("%d are bound, sums %+v, listed %+v", f.Bound, f.Sums, f.Sockets)
	}
}
