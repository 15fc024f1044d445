package rds

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// Ports of a former life are kept for their users, count as congested, and find no
// room for anybody until they are bound or the time is over.
func TestHeldPorts(t *testing.T) {
	cfg := DefaultConfig()
	e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
	var told []string
	e.OnPorts(func(port uint16, uid uint32, bound bool) { told = append(told, fmt.Sprint(port, uid, bound)) })
	e.Hold(time.Second, map[uint16]uint32{4000: 7, 4001: 8, 4002: 7}, 4*time.Second)
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	offer := func(port uint16) conn.Verdict {
		return pe.Deliver(conn.Arrival{Seq: 1, SPort: 9, DPort: port, Train: wire.One([]byte("x"))})
	}
	for port, want := range map[uint16]conn.Verdict{4000: conn.NoRoom, 4001: conn.NoRoom, 4003: conn.NoPort} {
		if got := offer(port); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
	if len(e.full) != 1 {
		t.Errorf("%d kernel peers would be told of room", len(e.full))
	}
	if !e.cmap.Congested(4000) || !e.cmap.Congested(4001) || e.cmap.Congested(4003) {
		t.Error("what is held is congested, and nothing else")
	}
	if _, err := e.Bind(4000, SocketOptions{UID: 9}); !errors.Is(err, rdserr.ErrAddrInUse) {
		t.Errorf("another user's bind: %v", err)
	}
	s, err := e.Bind(4000, SocketOptions{UID: 7})
	if err != nil {
		t.Fatal(err)
	}
	if got := offer(4000); got != conn.Placed {
		t.Errorf("its owner is back: %v", got)
	}
	at, ok := e.Next()
	if !ok || at > 2*time.Second {
		t.Fatalf("whoever waits for the port goes on at %v", at)
	}
	e.Tick(2 * time.Second)
	if e.cmap.Congested(4000) || len(e.full) != 0 || e.Held() != 2 {
		t.Errorf("bound: congested %v, %d links still wait, %d ports held", e.cmap.Congested(4000), len(e.full), e.Held())
	}
	s.Close(2 * time.Second)
	if got := offer(4000); got != conn.NoPort {
		t.Errorf("closed again: %v", got)
	}
	offer(4001)
	e.Tick(3999 * time.Millisecond)
	if e.Held() != 2 {
		t.Errorf("%d ports are held before the time is over", e.Held())
	}
	e.Tick(4 * time.Second)
	if got := offer(4001); got != conn.NoPort || e.cmap.Len() != 0 || e.Held() != 0 || len(e.full) != 0 {
		t.Errorf("the time is over: %v, %d congested, %d held, %d wait", got, e.cmap.Len(), e.Held(), len(e.full))
	}
	want := []string{"4000 7 true", "4000 7 false", "4001 8 false", "4002 7 false"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if _, ok := e.Next(); ok {
		t.Error("a timer is left")
	}
	if _, err := e.Bind(4001, SocketOptions{UID: 9}); err != nil {
		t.Error(err)
	}
}

// Ports that were to be given up at some time are kept when it is said that they are not.
func TestHeldForLonger(t *testing.T) {
	cfg := DefaultConfig()
	e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
	told := 0
	e.OnPorts(func(uint16, uint32, bool) { told++ })
	e.Hold(time.Second, map[uint16]uint32{4000: 7, 4001: 8}, conn.Never)
	e.HoldUntil(4 * time.Second)
	e.HoldUntil(conn.Never)
	e.Tick(5 * time.Second)
	if e.Held() != 2 || told != 0 || !e.cmap.Congested(4000) || !e.cmap.Congested(4001) {
		t.Errorf("%d ports are held, told %d times, %d congested", e.Held(), told, e.cmap.Len())
	}
	if at, ok := e.Next(); ok {
		t.Errorf("a timer is left, for %v", at)
	}
}

// After Leave nothing is placed and nothing has a final outcome: ports are congested whatever is
// read, and what is closed is held, not unbound.
func TestLeave(t *testing.T) {
	cfg := DefaultConfig()
	e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
	var told []string
	e.OnPorts(func(port uint16, uid uint32, bound bool) { told = append(told, fmt.Sprint(port, uid, bound)) })
	now := time.Second
	e.Begin(now)
	e.Hold(now, map[uint16]uint32{4003: 9}, conn.Never)
	if _, ok := e.Next(); ok {
		t.Error("a timer runs for a hold without an end")
	}
	e.HoldUntil(4 * time.Second)
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	offer := func(port uint16) conn.Verdict {
		return pe.Deliver(conn.Arrival{Seq: 1, SPort: 9, DPort: port, Train: wire.One([]byte("x"))})
	}
	bind := func(port uint16) *Socket {
		s, err := e.Bind(port, SocketOptions{UID: 7, RcvBufBytes: 4096})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	slow, quick, gone, sender := bind(4000), bind(4001), bind(4002), bind(5000)
	to := slow.Addr()
	for !slow.congested {
		if err := sender.Send(now, to, make([]byte, 1000), 1, Reported); err != nil {
			t.Fatal(err)
		}
	}
	if queued, err := sender.SendWait(now, to, []byte("x"), 2, Reported, 0, nil); !queued {
		t.Fatalf("a send to a congested port: %v", err)
	}
	if got := offer(4001); got != conn.Placed {
		t.Errorf("before Leave: %v", got)
	}
	gone.Close(now)
	e.Leave(now)
	e.Leave(now)
	if got := offer(4002); got != conn.NoPort {
		t.Errorf("what was closed before Leave: %v", got)
	}
	look := func(when string, ports ...uint16) {
		t.Helper()
		for _, port := range ports {
			if got := offer(port); got != conn.NoRoom || !e.cmap.Congested(port) {
				t.Errorf("%s port %d: %v, congested %v", when, port, got, e.cmap.Congested(port))
			}
		}
		e.holds(t)
	}
	look("bound", 4000, 4001, 4003)
	for _, s := range []*Socket{slow, quick} {
		for d, ok := s.Queue().Recv(); ok; d, ok = s.Queue().Recv() {
			d.Release()
		}
		s.ReadAll(now)
		if n := s.Info().RecvN; n != 0 {
			t.Errorf("%d unread", n)
		}
	}
	look("read", 4000, 4001)
	slow.Close(now)
	quick.Close(now)
	late := bind(4001) // it was about to when the stop began
	late.Close(now)
	e.Tick(time.Minute)
	e.End()
	look("closed", 4000, 4001, 4003)
	if i := sender.Info(); i.Waiting != 1 || i.Stats.Failed != 0 || len(sender.SendsDone(nil)) != 0 {
		t.Errorf("the sender: %+v", i)
	}
	if len(e.full) != 1 {
		t.Errorf("%d peers wait for room, want the one that found none", len(e.full))
	}
	want := []string{"4000 7 true", "4001 7 true", "4002 7 true", "5000 7 true", "4002 7 false", "4001 7 true"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	if e.Held() != 3 {
		t.Errorf("%d ports are held", e.Held())
	}
}

// TestBoundAfterLeave: what is bound after Leave, a port that was held or any other, is congested too; what was bound
// again and closed before it is nobody's.
func TestBoundAfterLeave(t *testing.T) {
	e, now := lone(t, nil)
	e.Begin(now)
	e.Hold(now, map[uint16]uint32{4000: 7, 4001: 7, 4002: 7}, conn.Never)
	bind(t, e, 4001, SocketOptions{UID: 7})
	bind(t, e, 4002, SocketOptions{UID: 7}).Close(now)
	e.Leave(now)
	s, other := bind(t, e, 4000, SocketOptions{UID: 7}), bind(t, e, 5000, SocketOptions{UID: 7})
	for range 2 {
		now = ticks(e, now, time.Second)
		for port, want := range map[uint16]bool{4000: true, 4001: true, 4002: false, 5000: true} {
			if got := e.cmap.Congested(port); got != want {
				t.Errorf("port %d: congested %v", port, got)
			}
		}
		e.holds(t)
		s.Close(now)
		other.Close(now)
	}
	if e.Held() != 2 {
		t.Errorf("%d ports are held", e.Held())
	}
}
