package datagram

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
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
