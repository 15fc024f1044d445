package datagram

import (
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
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

// watchedRing notes what is to be seen in another's receive ring when it is shown.
type watchedRing struct {
	shownRing
	other *shm.Region
	seen  uint64
}

func (r *watchedRing) Show() *shm.Alarm {
	r.seen = r.other.RecvTail().Load()
	return r.shownRing.Show()
}

// TestPlacedIsShownFirst: a sender is shown nothing of a step before what the step has placed is where its
// receiver finds it, without a ledger as with one.
func TestPlacedIsShownFirst(t *testing.T) {
	for _, ledger := range []bool{false, true} {
		c := config.Default()
		c.API.Ledger = filepath.Join(t.TempDir(), "ledger")
		a := newTestHost(t, c)
		h := a.list[0]
		reg, err := shm.Create(shm.Spec{Local: netip.AddrPortFrom(h.addr, 4000), SndBuf: 1 << 16, RcvBuf: 1 << 16, MaxDatagram: 1 << 16})
		if err != nil {
			t.Fatal(err)
		}
		var led *shm.LedgerRegion
		if ledger {
			if err := a.openLedger(); err != nil {
				t.Fatal(err)
			}
			defer a.closeLedger()
			if led, err = a.Ledger().PrepareRegion(); err != nil {
				t.Fatal(err)
			}
			led.Begin(reg)
		}
		to := &shownRing{Ring: Ring{End: shm.NewHost(reg, led)}}
		to.Owner = to
		defer to.End.Close()
		from := &watchedRing{other: reg}
		from.Owner = from
		for step := 1; step <= 2; step++ { // what one has committed is none of the next one's
			h.Lock()
			h.Touch(&from.Ring)
			if _, ok := to.End.PlaceCopy(netip.AddrPortFrom(h.addr, 4001), wire.Train{Body: []byte("x"), Count: 1}, shm.NoLane, 0); !ok {
				t.Fatal("there is no room")
			}
			h.Place(&to.Ring)
			h.Unlock()
			if from.seen != uint64(step) || from.shown != step || to.shown != step {
				t.Errorf("ledger %v, step %d: when its sender is shown the outcome the receive ring has %d", ledger, step, from.seen)
			}
		}
		for _, s := range h.rings.hosts[:cap(h.rings.hosts)] {
			if s != nil {
				t.Error("a region that was shown is kept")
			}
		}
	}
}
