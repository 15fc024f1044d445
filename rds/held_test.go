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
