package shm

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

func TestHostReceives(t *testing.T) {
	h, m := newPair(t, testSpec(), nil)
	src2 := netip.MustParseAddrPort("[fd00::1]:9")
	cost := 0
	place := func(src netip.AddrPort, body string, count int) {
		c, ok := h.PlaceCopy(src, wire.Train{Body: []byte(body), Count: count}, 1, 7)
		if !ok {
			t.Fatal("no room")
		}
		cost += c
	}
	place(testDst, "aa", 1)
	place(testDst, "bb", 1)
	place(testDst, "ccdd", 2) // of the same length each: one train of four
	place(testDst, "eee", 1)
	place(src2, "fff", 1)
	place(src2, "", 1)
	place(src2, "", 3)
	big := bytes.Repeat([]byte("x"), 100000)
	off, b, ok := h.Reserve(len(big))
	if !ok || len(b) != len(big) {
		t.Fatal(ok)
	}
	copy(b, big)
	c, ok := h.Place(src2, off, wire.One(make([]byte, len(big)-1)), NoLane, 0)
	cost += c
	if !ok || c != 128<<10 {
		t.Error(c, ok)
	}
	if got := m.received(false); len(got) != 0 {
		t.Errorf("visible before it was published: %v", got)
	}
	unread, each := 0, 0
	h.EachUnread(func(src netip.AddrPort, n int) bool { unread += n; each++; return true })
	if unread != 8+3+3+len(big)-1 || each != 4+1+1+4+1 {
		t.Errorf("%d bytes unread of %d datagrams", unread, each)
	}
	h.Publish()
	got := m.received(true)
	want := []string{"10.0.0.2:5000 4:aabbccdd", "10.0.0.2:5000 1:eee", "[fd00::1]:9 1:fff", "[fd00::1]:9 4:", "[fd00::1]:9 1:" + string(big[1:])}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%.200v", got)
	}
	if !h.HasReleases() {
		t.Error("no releases")
	}
	rb, rc, rn, err := h.Releases()
	if err != nil || rb != unread || rc != cost || rn != 4+1+1+4+1 {
		t.Errorf("%d bytes, %d cost of %d, %d datagrams: %v", rb, rc, cost, rn, err)
	}
	if h.arena.Used() != 0 || h.nSlots != 0 {
		t.Errorf("%d bytes of the arena are out", h.arena.Used())
	}
	off, _, _ = h.Reserve(5)
	h.Unreserve(off)
	// A table counts for nothing.
	h.PlaceCopy(testDst, wire.Train{Body: []byte("\x00\x00\x00\x01\x00\x00\x00\x02abc"), Count: 2, Table: true}, NoLane, 0)
	h.Publish()
	m.received(true)
	if rb, _, rn, _ := h.Releases(); rb != 3 || rn != 2 {
		t.Error(rb, rn)
	}
	if h.Err() != nil || h.arena.Used() != 0 {
		t.Error(h.Err())
	}
}

// TestHostTrainGrows: a train to its limit, in one block of the right size.
func TestHostTrainGrows(t *testing.T) {
	h, m := newPair(t, testSpec(), nil)
	var want []byte
	cost := 0
	for i := range 1500 {
		body := bytes.Repeat([]byte{byte(i)}, 64)
		want = append(want, body...)
		c, ok := h.PlaceCopy(testDst, wire.One(body), 2, uint64(i))
		if !ok {
			t.Fatal("no room")
		}
		cost += c
	}
	h.Publish()
	if got := m.r.RecvTail().Load(); got != 2 {
		t.Fatalf("%d descriptors", got)
	}
	var have []byte
	for n := range uint64(2) {
		var d RecvDesc
		m.r.GetRecv(n, &d)
		have = append(have, m.r.RecvArena()[d.Slot:][:d.Word.Bytes()]...)
		if n == 0 && (d.Seq != 1023 || d.Word.Count() != 1024) || n == 1 && d.Seq != 1499 {
			t.Errorf("%+v", d)
		}
	}
	if !bytes.Equal(have, want) {
		t.Error("other bytes")
	}
	if cost != 64<<10+32<<10 || h.arena.Used() != uint64(cost) {
		t.Errorf("cost %d, in use %d", cost, h.arena.Used())
	}
}

// TestHostReceiveFull: no room is said, and a client that makes some wakes a
// daemon that sleeps; be it by releasing, or by taking from a full ring.
func TestHostReceiveFull(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	place := func() bool {
		_, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0)
		h.Publish()
		return ok
	}
	if !h.Sleep() {
		t.Error("there is work")
	}
	for range 4 {
		if !place() {
			t.Fatal("no room in an empty ring")
		}
	}
	if m.r.DaemonSleeps().Load() != DaemonWaitsSend {
		t.Error("it waits for room and has some")
	}
	if place() || m.r.DaemonSleeps().Load()&DaemonWaitsRoom == 0 {
		t.Error("a fifth of four, or the daemon does not wait for room")
	}
	if h.HasRoom() {
		t.Error("room in a full ring")
	}
	got := m.received(false)
	if !h.HasRoom() || h.Sleep() {
		t.Error("the room in the ring was not seen")
	}
	h.Releases()
	if !h.Sleep() || m.r.DaemonSleeps().Load() != DaemonWaitsSend {
		t.Error("it still waits for room")
	}
	for range 4 {
		if !place() {
			t.Fatal("no room")
		}
	}
	got = append(got, m.received(false)...)
	for range 4 {
		place()
	}
	// 12 slots are out: 4 + 8, as many as a client may have. It releases none.
	m.received(false)
	if place() {
		t.Error("more slots than a client may have")
	}
	if len(got) != 8 || h.Err() != nil {
		t.Error(len(got), h.Err())
	}
	// An arena that is full.
	h, m = newPair(t, testSpec(), nil)
	var offs []uint64
	for {
		off, _, ok := h.Reserve(MaxDatagram)
		if !ok {
			break
		}
		offs = append(offs, off)
	}
	if len(offs) != 8 || h.noRoomFor != viewArena {
		t.Errorf("%d of 8, %d", len(offs), h.noRoomFor)
	}
	h.Place(testDst, offs[0], wire.One(make([]byte, MaxDatagram)), NoLane, 0)
	h.Publish()
	if !h.Sleep() || m.r.DaemonSleeps().Load()&DaemonWaitsRoom == 0 {
		t.Error("not waiting")
	}
	m.received(true)
	if h.Sleep() {
		t.Error("asleep over a release")
	}
	h.Releases()
	if _, _, ok := h.Reserve(MaxDatagram); !ok || h.noRoomFor != 0 {
		t.Error("no room after a release")
	}
}

// TestHostManyOut: a client that took and released what fits its release ring
// takes nothing more, so a sleeping daemon is woken before that, with all the
// room there is in the others.
func TestHostManyOut(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	if !h.Sleep() {
		t.Error("there is work")
	}
	for i := range 6 { // of 8 releases
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0); !ok {
			t.Fatal("no room")
		}
		h.Publish()
		if waits := m.r.DaemonSleeps().Load()&DaemonWaitsRoom != 0; waits != (i >= 4) {
			t.Errorf("%d slots out: waits for releases: %v", i+1, waits)
		}
		m.received(true)
	}
	if h.Sleep() {
		t.Error("asleep over releases")
	}
	h.Releases()
	if !h.Sleep() || m.r.DaemonSleeps().Load() != DaemonWaitsSend {
		t.Error("it still waits")
	}
}
