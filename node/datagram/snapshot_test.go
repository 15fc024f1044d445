package datagram

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// TestSnapshotOfHosts: what the daemon shows of its hosts is what they have.
func TestSnapshotOfHosts(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.kernel(k)
	s.accepted(netip.MustParseAddr("198.51.100.1")) // a stranger
	var snap Snapshot
	s.a.Read(&snap)
	b := s.a.engineConfig.Budget
	want := []base.Budget{{Name: "memory", Used: uint64(b.Used()), Limit: uint64(b.Limit)}, {Name: "peers", Used: 1, Limit: uint64(s.a.deps.Conf().Limits.MaxPeers)},
		{Name: "handshakes", Limit: uint64(s.a.deps.Conf().Limits.MaxHandshakes)},
		{Name: "dials", Limit: uint64(s.a.deps.Conf().Limits.MaxDials)}}
	if b.Used() == 0 || !slices.Equal(snap.Budgets, want) {
		t.Errorf("budgets %+v, want %+v", snap.Budgets, want)
	}
	if len(snap.Peers) != 1 || !snap.Peers[0].Up || snap.Peers[0].Remote != seamHigher || snap.Peers[0].Local != seamLocal || snap.Peers[0].QueuedBytes == 0 {
		t.Errorf("peers %+v", snap.Peers)
	}
	if snap.RefusedLinks != 1 {
		t.Errorf("%d links refused, want 1", snap.RefusedLinks)
	}
	// A ping that cannot be made says why, and leaves no socket behind.
	if _, _, err := s.a.Ping(context.Background(), Pinger{}, netip.Addr{}, netip.MustParseAddr("2001:db8::1")); !errors.Is(err, rdserr.ErrAddrNotAvail) {
		t.Errorf("a ping of another family: %v", err)
	}
	if _, _, err := s.a.Ping(context.Background(), Pinger{}, seamHigher, seamLower); !errors.Is(err, rdserr.ErrAddrNotAvail) {
		t.Errorf("a ping from an address of somebody else: %v", err)
	}
	e, _ := s.h.Lock()
	n := len(e.Bound())
	s.h.Unlock()
	if n != 1 {
		t.Errorf("%d sockets are bound, want 1", n)
	}
}

// TestSnapshotOfWaiting: what waits before the congested port of a peer that is gone waits for that
// peer, empty datagrams and sends that are not accepted too, until it is taken back.
func TestSnapshotOfWaiting(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	s.p.mu.Lock()
	s.p.fails = errFake
	s.p.mu.Unlock()
	l.mu.Lock()
	l.acked = l.bytes
	l.mu.Unlock()
	l.end(io.EOF)
	const port = 4000
	to := netip.AddrPortFrom(seamHigher, port)
	e, now := s.h.Lock()
	e.Known(seamHigher).CongestionDelta(now, wire.PortState{Port: port, Congested: true})
	d, err := k.Open(to, nil)
	if err == nil {
		err = k.Post(now, d, wire.One(nil), 0, 1, rds.Quiet, nil)
	}
	if err == nil {
		_, err = k.SendWait(now, to, []byte("x"), 2, rds.Quiet, 0, nil)
	}
	s.h.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	waits := func(want uint64) {
		t.Helper()
		var snap Snapshot
		s.a.Read(&snap)
		if len(snap.Peers) != 1 || snap.Peers[0].Up || snap.Peers[0].Waiting != want || snap.Peers[0].QueuedBytes != 0 {
			t.Errorf("%d are to wait: %+v", want, snap.Peers)
		}
	}
	waits(2)
	_, now = s.h.Lock()
	k.Cancel(now, to)
	s.h.Unlock()
	waits(0)
}

// TestSnapshotOfPeers: each address has a table of peers, and what it refuses is told.
func TestSnapshotOfPeers(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) { c.MaxPeers = 1 })
	k := s.bind(rds.SocketOptions{})
	s.kernel(k) // it does not rest
	s.a.list = append(s.a.list, newLocal(s.a, netip.MustParseAddr("203.0.113.4"), 1))
	peers := func() base.Budget {
		var snap Snapshot
		s.a.Read(&snap)
		return snap.Budgets[1]
	}
	most := uint64(s.a.deps.Conf().Limits.MaxPeers)
	if got := peers(); got != (base.Budget{Name: "peers", Used: 1, Limit: 2 * most}) {
		t.Errorf("two addresses: %+v", got)
	}
	_, now := s.h.Lock()
	err := k.Send(now, netip.AddrPortFrom(seamLower, 9), nil, 0, rds.Quiet)
	s.h.Unlock()
	if !errors.Is(err, rdserr.ErrNoMemory) {
		t.Fatal(err)
	}
	if got := peers(); got.Refused != 1 || got.RefusedAgo <= 0 {
		t.Errorf("after a refusal: %+v", got)
	}
}

// TestSnapshotWhilePeersGo: what a peer counted is in the sum of a snapshot also when the peer makes
// room for others while the snapshot waits for its turn, between its pages or before them.
func TestSnapshotWhilePeersGo(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) { c.AllowPeer = nil })
	k := s.bind(rds.SocketOptions{})
	addr := netip.MustParseAddr("198.51.100.0")
	const n = 3 * PageSize
	e, _ := s.h.Lock()
	for range n {
		addr = addr.Next()
		pe, err := e.Peer(addr)
		if err != nil {
			t.Fatal(err)
		}
		if v := pe.Deliver(conn.Arrival{SPort: 9, DPort: k.Addr().Port(), Train: wire.One([]byte("x"))}); v != conn.Placed {
			t.Fatal(v)
		}
	}
	s.h.Unlock()
	evict := func() bool {
		e, now := s.h.Lock()
		defer s.h.Unlock()
		return e.Evict(now)
	}
	read := func() uint64 {
		var snap Snapshot
		s.a.Read(&snap)
		return snap.Counters.RecvQueued
	}
	if got := read(); got != n {
		t.Fatalf("%d datagrams are counted, want %d", got, n)
	}
	s.h.looking.Lock() // another list is being made
	sum := make(chan uint64)
	go func() { sum <- read() }()
	time.Sleep(20 * time.Millisecond)
	if !evict() {
		t.Fatal("no peer goes")
	}
	s.h.looking.Unlock()
	if got := <-sum; got != n {
		t.Errorf("%d datagrams are counted when a peer has gone, want %d", got, n)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for evict() {
		}
	}()
	for over := false; !over; {
		select {
		case <-gone:
			over = true
		default:
		}
		if got := read(); got != n {
			t.Fatalf("%d datagrams are counted while peers go, want %d", got, n)
		}
	}
}
