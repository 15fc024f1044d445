package shm

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// TestPagesModel: in a drawn life of a region no byte of what the client has not released
// changes, and what has memory is what is paid for.
func TestPagesModel(t *testing.T) {
	rnd := rand.New(rand.NewSource(5))
	for range 20 {
		s := testSpec()
		s.Events, s.Receives, s.Releases, s.RecvArena = 256, 256, 512, 1<<21
		h, m := untouched(t, s)
		p := &purse{left: 1<<18 + rnd.Intn(1<<21)}
		h.Pay(p)
		type held struct {
			slot uint64
			n    int
			fill byte
		}
		var unread, out []held
		var spares []Spared
		at, released := uint64(0), uint64(0)
		for step := range 3000 {
			switch rnd.Intn(8) {
			case 0, 1, 2:
				n, fill := 1+rnd.Intn(1<<rnd.Intn(18)), byte(step)
				if _, ok := h.PlaceCopy(testDst, wire.One(bytes.Repeat([]byte{fill}, n)), NoLane, 0); ok {
					h.Publish()
					unread = append(unread, held{h.slots[*h.slotOf(h.recvPub - 1)].off, n, fill})
				}
			case 3:
				if len(unread) > 0 {
					out, unread = append(out, unread[0]), unread[1:]
					m.r.RecvHead().Store(h.recvPub - uint64(len(unread)))
				}
			case 4:
				if len(out) > 0 {
					i := rnd.Intn(len(out))
					m.r.PutRelease(released, out[i].slot)
					released++
					m.r.ReleaseTail().Store(released)
					out[i] = out[len(out)-1]
					out = out[:len(out)-1]
					h.Releases()
				}
			case 5:
				h.Freed(1)
				h.Publish()
				if rnd.Intn(3) == 0 {
					m.r.EventHead().Store(h.eventPub)
				}
			case 6:
				if s, ok := h.Spare(&at); ok {
					spares = append(spares, s)
				} else {
					at = 0
				}
			case 7:
				for _, s := range spares {
					h.r.Remove(s)
					h.Restore(s)
				}
				spares = spares[:0]
				h.MemoryAgain()
				h.Publish()
			}
			if h.Err() != nil {
				t.Fatal(step, h.Err())
			}
			for _, l := range [][]held{unread, out} {
				for _, x := range l {
					if b := m.r.recvArena[x.slot:][:x.n]; b[0] != x.fill || b[x.n-1] != x.fill || b[x.n/2] != x.fill {
						t.Fatalf("step %d: what lies at %d has changed", step, x.slot)
					}
				}
			}
			going := 0
			for _, s := range spares {
				going += s.pages << pageShift
			}
			if n := allocated(t, h.r.ownFD); n > h.Paid() || h.Paid() != p.taken-p.given {
				t.Fatalf("step %d: %d bytes have memory, %d are paid for, %d of them going", step, n, h.Paid(), going)
			}
			// Used is what is paid for and what was seen of the client's part, no more than is there.
			if theirs := int(h.Used()) - h.Paid(); theirs < 0 || theirs > allocated(t, h.r.FD) || released > 0 && theirs == 0 {
				t.Fatalf("step %d: %d bytes are in use, %d of them paid for; of the client's part %d are there", step, h.Used(), h.Paid(), allocated(t, h.r.FD))
			}
		}
	}
}

// TestReleasesAreSeenAgain: what a client released while it was found out whether it had touched
// the ring is looked at afterwards, also of one that may post nothing more.
func TestReleasesAreSeenAgain(t *testing.T) {
	h, m := untouched(t, testSpec())
	off, _, _ := h.Reserve(64)
	h.Place(testDst, off, wire.One(make([]byte, 64)), NoLane, 0)
	h.Publish()
	h.WantRoom(true)
	h.sends.datagrams = MaxOutstandingDatagrams
	h.refresh()
	m.r.ReleaseTail().Store(1)
	if _, _, n, err := h.Releases(); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	h.Due()
	if _, _, wanted := h.Unsure(); !wanted || h.Due() {
		t.Fatal("nothing is found out, or a reactor would look again and again")
	}
	h.Sure(true)
	if !h.Due() {
		t.Error("the release is forgotten")
	}
	if _, _, n, err := h.Releases(); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestSmallBlocksAreGivenBack: pages that nothing but small blocks lay in, and all of them freed, are not needed.
func TestSmallBlocksAreGivenBack(t *testing.T) {
	s := testSpec()
	s.RecvArena = 1 << 20
	h, _ := untouched(t, s)
	h.Pay(&purse{left: 1 << 30})
	var out []uint64
	for range int(pageBytes) / UnitBytes {
		off, _, ok := h.Reserve(1)
		if !ok {
			t.Fatal("no room")
		}
		out = append(out, off)
	}
	for _, off := range out {
		h.Unreserve(off)
	}
	if spareAll(t, h); h.Paid() != 0 {
		t.Errorf("%d bytes are paid for, and nothing is out", h.Paid())
	}
}

// TestFreedBehindALook: pages of a block that is freed when a look for them has passed it are found by the next, also
// where nothing else is out at the end of the first.
func TestFreedBehindALook(t *testing.T) {
	s := testSpec()
	s.RcvBuf, s.RecvArena = 512<<10, 4<<20 // of its largest blocks none is kept as it is
	h, _ := untouched(t, s)
	p := &purse{left: 1 << 30}
	h.Pay(p)
	first, _, _ := h.Reserve(MaxDatagram)
	second, _, ok := h.Reserve(MaxDatagram)
	if !ok || first > second {
		t.Fatalf("blocks at %d and %d, %v", first, second, ok)
	}
	h.Unreserve(second)
	at := uint64(0)
	x, ok := h.Spare(&at)
	if !ok {
		t.Fatal("nothing is found")
	}
	h.Unreserve(first)
	for ; ok; x, ok = h.Spare(&at) {
		h.Restore(x)
	}
	if spareAll(t, h); h.Paid() != 0 || p.kept != 0 {
		t.Errorf("%d bytes are paid for, %d for accounts, and nothing is out", h.Paid(), p.kept)
	}
}
