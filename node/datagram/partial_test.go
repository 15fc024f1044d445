package datagram

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
)

// silentLink is a link of somebody who says nothing.
type silentLink struct {
	transport.Link
	closed bool
}

func (l *silentLink) RemoteAddr() netip.AddrPort { return netip.AddrPort{} }
func (l *silentLink) Close()                     { l.closed = true }
func (l *silentLink) Abort()                     { l.closed = true }

// What is in the middle of a payload is closed when nothing more of it comes,
// and when it takes too long; what goes on is let be.
func TestPartialPayloadsEnd(t *testing.T) {
	h := &Local{log: slog.New(slog.DiscardHandler)}
	now := time.Now()
	links := map[string]*silentLink{"silent": {}, "drips": {}, "goes on": {}}
	var p partials
	p.links = map[*laneLink]*partial{}
	for name, x := range map[string]*partial{
		"silent":  {since: now.Add(-time.Minute), seen: now.Add(-time.Minute)},
		"drips":   {since: now.Add(-2 * partialMost), seen: now},
		"goes on": {since: now.Add(-time.Minute), seen: now},
	} {
		p.links[&laneLink{h: h, link: links[name]}] = x
	}
	p.sweep(now, 20*time.Second)
	if !links["silent"].closed || !links["drips"].closed || links["goes on"].closed {
		t.Errorf("closed: silent %v, drips %v, goes on %v", links["silent"].closed, links["drips"].closed, links["goes on"].closed)
	}
}

// TestPartialPayloadIsCharged: after each read the peer is charged for exactly what is in the
// middle of its payload, be it more, less, another or nothing, and a link is watched exactly
// while there is something.
func TestPartialPayloadIsCharged(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.rdsd(k)
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	lane := s.h.e.Known(seamHigher).Conn().LaneAt(0)
	l := s.h.laneOf(lane).find(lane.Attempt())
	account := s.h.all.deps.Memory.Account(quota.Peer(seamHigher))
	defer account.Close()
	before := account.Used()
	const n = 1 << 20
	for _, bytes := range []int64{n, n + 1, n, 1, 2, 0, 0, 1, 0} {
		l.partial = bytes
		l.settlePartial()
		if got := account.Used() - before; got != bytes {
			t.Errorf("charged for %d bytes, want %d", got, bytes)
		}
		p := &s.h.all.partials
		p.mu.Lock()
		if watched := p.links[l] != nil; watched != (bytes > 0) {
			t.Errorf("with %d bytes there, watched: %v", bytes, watched)
		}
		p.mu.Unlock()
	}
}
