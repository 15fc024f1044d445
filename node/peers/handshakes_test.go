package peers

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// silent is a connection of somebody who says nothing.
type silent struct{ closed int }

func (l *silent) abort() { l.closed++ }

func TestHandshakeSlots(t *testing.T) {
	memory := quota.New(64<<20, nil)
	var h handshakes
	links := map[string]*silent{}
	user, now := NoUser, time.Unix(1000, 0)
	begin := func(name, addr string) *Handshake {
		t.Helper()
		l := &silent{}
		links[name] = l
		now = now.Add(handshakeEvery)
		x, err := h.begin(now, netip.MustParseAddrPort(addr).Addr(), user, l.abort, 16, memory)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	closed := func(want bool, names ...string) {
		t.Helper()
		for _, n := range names {
			if l := links[n]; l.closed > 1 || l.closed > 0 != want {
				t.Errorf("%s was closed %d times", n, l.closed)
			}
		}
	}
	first := begin("first", "10.0.0.1:1000")
	// A user of this machine, from as many addresses as he likes, holds a quarter of
	// the slots; his oldest make room for his newest, and nobody else's do.
	user = 0
	roots := begin("root's", "127.0.0.1:1999")
	user = 1000
	for i := range 40 {
		begin(fmt.Sprint("local", i), fmt.Sprintf("127.0.%d.1:%d", i, 2000+i))
	}
	closed(false, "root's")
	roots.End()
	user = NoUser
	closed(true, "local0", "local35")
	closed(false, "first", "local36", "local39")
	if b := h.budget(16); b.Used != 5 || b.Refused != 36 || b.Limit != 16 {
		t.Errorf("the slots are %+v", b)
	}
	// The same from a network of IPv6, and a machine of IPv4.
	for i := range 10 {
		begin(fmt.Sprint("six", i), fmt.Sprintf("[2001:db8::%d]:1", i+1))
		begin(fmt.Sprint("four", i), fmt.Sprintf("10.0.0.9:%d", i+1))
	}
	closed(true, "six0", "six5", "four5")
	closed(false, "six6", "four6", "first", "local36")
	// Who comes when all are taken takes the place of the oldest of all.
	for i := range 3 {
		begin(fmt.Sprint("other", i), fmt.Sprintf("10.1.0.%d:1", i))
	}
	closed(false, "first")
	begin("last", "10.2.0.1:1")
	closed(true, "first")
	closed(false, "local36", "last")
	first.End() // again
	if b := h.budget(16); b.Used != 16 {
		t.Errorf("the slots are %+v", b)
	}
	var left []*Handshake
	for e := h.order.Front(); e != nil; e = e.Next() {
		left = append(left, e.Value.(*Handshake))
	}
	for _, x := range left {
		x.End()
	}
	(*Handshake)(nil).End()
	if len(h.bySource) != 0 || memory.Used() != 0 || len(memory.Holders()) != 0 {
		t.Errorf("%v, %d bytes and %v are left", h.bySource, memory.Used(), memory.Holders())
	}
}

func TestHandshakeWithoutMemory(t *testing.T) {
	memory := quota.New(64<<20, nil)
	// What is sure may go beyond the limit by a 32nd of it, in which nothing is left either.
	memory.Account(quota.Holder{}).Grow(quota.Peers, 66<<20)
	var h handshakes
	if _, err := h.begin(time.Now(), netip.MustParseAddr("10.0.0.1"), NoUser, func() {}, 16, memory); err == nil {
		t.Error("a slot that memory has no room for was given")
	}
	if b := h.budget(16); b.Used != 0 || b.Refused != 1 {
		t.Errorf("the slots are %+v", b)
	}
}

// TestHandshakesAtAPace: a source that has its slots gives them to others of its own one
// in 5 ms, whoever is faster is closed; other sources are not concerned.
func TestHandshakesAtAPace(t *testing.T) {
	memory := quota.New(64<<20, nil)
	var h handshakes
	now, in := time.Unix(1000, 0), 0
	for i := range 1000 {
		at := netip.AddrFrom4([4]byte{127, 0, byte(i >> 8), byte(i)})
		if _, err := h.begin(now, at, 1000, func() {}, 64, memory); err == nil {
			in++
		} else if !errors.Is(err, rdserr.ErrTooMany) {
			t.Fatal(err)
		}
		if i%100 == 0 {
			at := netip.AddrFrom4([4]byte{10, 0, 0, byte(i / 100)})
			if _, err := h.begin(now, at, NoUser, func() {}, 64, memory); err != nil {
				t.Errorf("another source: %v", err)
			}
		}
		now = now.Add(time.Millisecond)
	}
	if want := 16 + (1000-16+4)/5; in != want {
		t.Errorf("%d of 1,000 connections in a second, not %d", in, want)
	}
	if b := h.budget(64); b.Used != 26 || b.Refused != uint64(1000-16) {
		t.Errorf("the slots are %+v", b)
	}
	if n := memory.Used(); n != 26*handshakeBytes {
		t.Errorf("%d bytes are charged", n)
	}
}

// TestHandshakesOfABusyPeer: a peer that holds its share of the memory, or whose node has next to
// none, still connects with as many links as it has lanes, and with no more.
func TestHandshakesOfABusyPeer(t *testing.T) {
	const limit = 64 << 20
	memory := quota.New(limit, nil)
	var h handshakes
	addr := netip.MustParseAddr("10.0.0.1")
	account := memory.Account(quota.Peer(addr))
	defer account.Close()
	account.Grow(quota.Chunks, limit-100<<10)
	begin := func() (*Handshake, error) {
		return h.begin(time.Unix(1000, 0), addr, NoUser, func() {}, 256, memory)
	}
	var all []*Handshake
	for i := range handshakesSure {
		x, err := begin()
		if err != nil {
			t.Fatalf("number %d: %v", i+1, err)
		}
		all = append(all, x)
	}
	if _, err := begin(); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("one more: %v", err)
	}
	for _, x := range all {
		x.End()
	}
	account.Grow(quota.Chunks, 100<<10) // pages, for example, that are there and cannot be refused
	if x, err := begin(); err != nil {
		t.Errorf("with the limit reached by others: %v", err)
	} else {
		x.End()
	}
	account.Grow(quota.Chunks, limit/32)
	if _, err := begin(); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("with no memory at all: %v", err)
	}
}

// TestHandshakesOfFew: a source has its pace also where its share is one slot.
func TestHandshakesOfFew(t *testing.T) {
	for _, most := range []int{1, 4, 7} {
		memory := quota.New(64<<20, nil)
		var h handshakes
		now := time.Unix(1000, 0)
		got := ""
		for _, after := range []time.Duration{0, 0, 0, handshakeEvery - 1, 1, 0} {
			now = now.Add(after)
			_, err := h.begin(now, netip.MustParseAddr("10.0.0.1"), NoUser, func() {}, most, memory)
			if err != nil && !errors.Is(err, rdserr.ErrTooMany) {
				t.Fatal(err)
			}
			got += fmt.Sprint(err == nil, " ")
		}
		if got != "true true false false true false " {
			t.Errorf("of %d slots: %s", most, got)
		}
		if b := h.budget(most); b.Used != 1 || b.Refused != 5 || memory.Used() != handshakeBytes {
			t.Errorf("of %d slots: %+v, %d bytes", most, b, memory.Used())
		}
	}
}
