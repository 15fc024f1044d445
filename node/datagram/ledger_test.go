package datagram

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
)

// shownRing counts how often it was shown.
type shownRing struct {
	Ring
	shown int
}

func (r *shownRing) Show() *shm.Alarm { r.shown++; return nil }
func (r *shownRing) Collect()         {}

// TestStepLetsSocketsGo: what a step noted of sockets with rings is forgotten when the
// step is over: no list of the address keeps a socket, and the books of its region with
// it, until another step happens to write over the entry.
func TestStepLetsSocketsGo(t *testing.T) {
	c := config.Default()
	c.API.Ledger = filepath.Join(t.TempDir(), "ledger")
	a := newTestHost(t, c)
	if err := a.openLedger(); err != nil {
		t.Fatal(err)
	}
	defer a.closeLedger()
	h := a.list[0]
	reg, err := shm.Create(shm.Spec{Local: netip.AddrPortFrom(h.addr, 4000), SndBuf: 1 << 16, RcvBuf: 1 << 16, MaxDatagram: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	led, err := a.Ledger().PrepareRegion()
	if err != nil {
		t.Fatal(err)
	}
	led.Begin(reg)
	r := &shownRing{Ring: Ring{End: shm.NewHost(reg, led)}}
	r.Owner = r
	defer r.End.Close()
	h.Lock()
	for range 2 { // once is enough
		h.Place(&r.Ring)
		h.Touch(&r.Ring)
	}
	h.Unlock()
	if r.shown != 1 || r.placed || r.dirty {
		t.Errorf("shown %d times, placed %v, dirty %v", r.shown, r.placed, r.dirty)
	}

	h.Lock()
	defer h.Unlock()
	placed, dirty, hosts := h.rings.placed, h.rings.dirty, h.rings.hosts
	if cap(placed) == 0 || cap(dirty) == 0 || cap(hosts) == 0 {
		t.Fatalf("room for %d, %d and %d sockets: no step noted any", cap(placed), cap(dirty), cap(hosts))
	}
	for i, s := range placed[:cap(placed)] {
		if s != nil {
			t.Errorf("entry %d of those with datagrams placed is kept", i)
		}
	}
	for i, s := range dirty[:cap(dirty)] {
		if s != nil {
			t.Errorf("entry %d of those with news is kept", i)
		}
	}
	for i, s := range hosts[:cap(hosts)] {
		if s != nil {
			t.Errorf("entry %d of the regions that were committed is kept", i)
		}
	}
}
