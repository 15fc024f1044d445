package datagram

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/wire"
)

// TestStayingIsBounded: a port is told once it has stayed congested, again after a long
// time, anew when it is congested anew, and of many some in each look.
func TestStayingIsBounded(t *testing.T) {
	s := NewStaying(stayingAfter)
	at := func(i int) seenPort {
		return seenPort{seamLocal, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))}
	}
	look := func(lasts, since time.Duration) bool {
		defer s.looked()
		return s.wants(at(1), since, lasts, 0)
	}
	for _, c := range []struct {
		lasts, since time.Duration
		want         bool
	}{
		{stayingAfter - 1, 5, false}, {stayingAfter, 5, true}, {stayingAfter + stayingLook, 5, false}, {stayingAfter + stayingAgain - 1, 5, false},
		{stayingAfter + stayingAgain, 5, true}, {2 * stayingAgain, 5, false}, {stayingAfter, 6, true}, // it was clear in between
	} {
		if got := look(c.lasts, c.since); got != c.want {
			t.Errorf("congested for %v since %v: told %v", c.lasts, c.since, got)
		}
	}
	s.looked() // not seen: it is clear
	if len(s.told) != 0 {
		t.Errorf("%d are remembered", len(s.told))
	}
	if !look(stayingAfter, 6) {
		t.Error("what was clear and is congested again is not told")
	}
	for range 1000 {
		lines := 0
		for i := range 5000 {
			if s.wants(at(i), 7, time.Minute, lines) {
				lines++
			}
		}
		s.looked()
		if lines > stayingLines || len(s.told) > stayingPorts {
			t.Fatalf("%d lines in a look, %d remembered", lines, len(s.told))
		}
	}
	if len(s.told) != stayingPorts {
		t.Errorf("after many looks %d are remembered", len(s.told))
	}
}

// TestStayingAtTwoAddresses: a port of a peer that is linked with two addresses of this node is told once
// for each of them where sockets wait, and not in each look.
func TestStayingAtTwoAddresses(t *testing.T) {
	s := newSeam(t, nil)
	other := newLocal(s.a, netip.MustParseAddr("203.0.113.4"), 1)
	s.a.list = append(s.a.list, other)
	log := &countStaying{Handler: slog.DiscardHandler}
	s.a.deps.Log = slog.New(log)
	s.p.fails = errFake
	to := netip.AddrPortFrom(seamHigher, 4000)
	for _, h := range s.a.list {
		e, now := h.Lock()
		k, err := e.Bind(0, rds.SocketOptions{Data: make(wakeup, 1)})
		var pe *rds.Peer
		if err == nil {
			pe, err = e.Peer(seamHigher)
		}
		if err == nil {
			pe.CongestionDelta(now, wire.PortState{Port: to.Port(), Congested: true})
			_, err = k.SendWait(now, to, nil, 1, rds.Quiet, 0, nil)
		}
		h.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that it is congested there since another time
	}
	staying := NewStaying(0)
	for range 10 {
		s.a.LookStaying(staying)
	}
	if n := log.n.Load(); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
}

// countStaying counts the lines of ports that stay congested.
type countStaying struct {
	slog.Handler
	n atomic.Int32
}

func (c *countStaying) Enabled(context.Context, slog.Level) bool { return true }

func (c *countStaying) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "a port stays congested" {
		c.n.Add(1)
	}
	return nil
}

// TestStayingBlamesNoReader: of a port that nobody has, and of one of a node that is not linked, no program is said to
// read too slowly, whatever was known of one before.
func TestStayingBlamesNoReader(t *testing.T) {
	known := PortReader{PID: 7, Label: "app"}
	for _, c := range []struct {
		port stayingPort
		want string
	}{
		{stayingPort{}, "its program does not read fast enough"},
		{stayingPort{PortReader: known}, `"app", pid 7`},
		{stayingPort{local: true, held: true}, "it is held for who had it before the restart"},
		{stayingPort{away: true, PortReader: known, waiting: 1}, "there is no link to its node"},
	} {
		if got := c.port.why(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %s", c.port, got)
		}
	}
}
