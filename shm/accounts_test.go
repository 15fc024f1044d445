package shm

import (
	"net/netip"
	"runtime"
	"testing"
)

// liveBytes is what lives of Go's memory.
func liveBytes() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestAccountsArePaid: what the accounts of a receive side take is paid for, whether few large blocks are out or as
// many small ones as can be, and given back with the pages when nothing is out any more.
func TestAccountsArePaid(t *testing.T) {
	s := testSpec()
	s.Receives, s.Releases = DefaultReceives, DefaultReleases
	s.RcvBuf, s.RecvArena = 64<<20, 512<<20
	for what, c := range map[string]struct{ blocks, bytes int }{
		"large": {200, MaxDatagram},
		"small": {DefaultReceives + DefaultReleases, 1},
		"pages": {DefaultReceives + DefaultReleases, 4096},
	} {
		h, _ := untouched(t, s)
		p := &purse{left: 1 << 40}
		h.Pay(p)
		out := make([]uint64, 0, c.blocks)
		before := liveBytes()
		for range c.blocks {
			off, _, ok := h.Reserve(c.bytes)
			if !ok {
				t.Fatalf("%s: %d of %d blocks", what, len(out), c.blocks)
			}
			out = append(out, off)
		}
		const little = 128 << 10 // beside: keptFree, and which pages are paid for
		if took := liveBytes() - before; took-p.kept > little || p.kept-took > little {
			t.Errorf("%s: %d bytes are paid for of %d that the accounts take", what, p.kept, took)
		}
		for _, off := range out {
			h.Unreserve(off)
		}
		for at := uint64(0); ; {
			s, ok := h.Spare(&at)
			if !ok {
				break
			}
			h.Restore(s)
		}
		if kept := liveBytes() - before; kept > little || p.kept != 0 || h.Paid() != 0 {
			t.Errorf("%s: with nothing out the accounts take %d bytes, %d are paid for, and %d for pages", what, kept, p.kept, h.Paid())
		}
		h.EachUnread(func(netip.AddrPort, int) bool { return true })
		if _, _, ok := h.Reserve(c.bytes); !ok {
			t.Errorf("%s: nothing can be had any more", what)
		}
	}
}

// TestUnpaidAccounts: what there is no memory for the accounts of finds no room, as without a page.
func TestUnpaidAccounts(t *testing.T) {
	s := testSpec()
	s.Receives, s.Releases, s.RecvArena = DefaultReceives, DefaultReleases, 64<<20
	h, _ := untouched(t, s)
	p := &purse{left: 1 << 40, bare: true}
	h.Pay(p)
	n := 0
	for ; n < DefaultReceives; n++ {
		if _, _, ok := h.Reserve(4096); !ok {
			break
		}
	}
	if n == 0 || n == DefaultReceives || !h.Lacks() {
		t.Fatalf("%d blocks, none of whose accounts was paid for", n)
	}
	if used := h.arena.Used(); used != uint64(n)*4096 || h.nSlots != n {
		t.Errorf("%d bytes are used, in %d slots, of %d blocks", used, h.nSlots, n)
	}
	p.bare = false
	h.MemoryAgain()
	if _, _, ok := h.Reserve(4096); !ok || p.kept == 0 {
		t.Errorf("with memory again: %v, %d bytes are paid for", ok, p.kept)
	}
}
