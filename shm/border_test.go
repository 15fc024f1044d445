package shm

import (
	"bytes"
	"errors"
	"hash/crc32"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// TestPreparedLanes: lanes that were prepared for are found without an allocation, as reactors
// need it; what is promised to peers that never come is bounded, and so is the table.
func TestPreparedLanes(t *testing.T) {
	const perPage = 4096 / laneBytes
	b, c := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	l := newLedger(t, LedgerSpec{Lanes: 8 * perPage})
	found := func(remote netip.Addr, lane uint32) bool {
		t.Helper()
		p, _, err := l.lane(laneKey{testAddr, remote, lane})
		if err != nil {
			t.Fatal(err)
		}
		return p != nil
	}
	if found(b, 0) {
		t.Fatal("there was an entry: the test shows nothing")
	}
	prepare := func(remote netip.Addr, n int) {
		t.Helper()
		if err := l.PrepareLanes(testAddr, remote, n); err != nil {
			t.Fatal(err)
		}
	}
	prepare(b, perPage+1)
	prepare(c, perPage) // both come
	for lane := range uint32(perPage + 1) {
		if !found(b, lane) {
			t.Fatalf("lane %d of %d was not prepared", lane, perPage+1)
		}
	}
	for lane := range uint32(perPage) {
		if !found(c, lane) {
			t.Errorf("lane %d of the second peer was not prepared", lane)
		}
	}
	prepare(b, 4*perPage) // it has lanes: nothing is promised to it
	if l.promised != 0 {
		t.Errorf("%d lanes are promised, and all have come", l.promised)
	}
	prepare(netip.MustParseAddr("10.0.0.4"), 100*perPage) // of more than there are
	if !l.allocated(l.h.LaneOff>>12, (l.h.LaneOff+uint64(l.h.Lanes)*laneBytes)>>12) {
		t.Error("the rest of the table was not allocated")
	}
	for i := range uint32(6*perPage - 1) {
		if !found(netip.MustParseAddr("10.0.0.4"), i) {
			t.Fatalf("lane %d has no memory", i)
		}
	}
	prepare(netip.MustParseAddr("10.0.0.5"), 1) // none is left: Lane says so

	large := newLedger(t, LedgerSpec{Lanes: 4 * maxPromised})
	for i := range byte(4) {
		if err := large.PrepareLanes(testAddr, netip.AddrFrom4([4]byte{10, 0, 1, i}), maxPromised-1); err != nil {
			t.Fatal(err)
		}
	}
	if end := (large.h.LaneOff + maxPromised*laneBytes) >> 12; !large.allocated(large.h.LaneOff>>12, end) || large.allocated(end, end+1) {
		t.Error("peers that have not come were promised more, or less, than the most")
	}
	if err := (*Ledger)(nil).PrepareLanes(testAddr, b, 1); err != nil {
		t.Error(err)
	}
}

// TestLanesAreUsedAgain: the entry of a lane that is gone is one other lane's, clean.
func TestLanesAreUsedAgain(t *testing.T) {
	l := newLedger(t, LedgerSpec{Lanes: 4})
	lane := func(remote string) *LedgerLane {
		t.Helper()
		a := netip.MustParseAddr(remote)
		local := testAddr
		if a.Is6() {
			local = netip.MustParseAddr("fe80::1")
		}
		p, err := l.Lane(local, a, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	old := lane("fe80::2:3:4")
	old.Free()
	a, b := lane("10.0.0.2"), lane("10.0.0.3")
	if a.Index() != old.Index() || b.Index() == a.Index() {
		t.Errorf("entries %d and %d, after %d was given back", a.Index(), b.Index(), old.Index())
	}
	var r LaneRecord
	if !r.get(a.mem) || r.Remote != netip.MustParseAddr("10.0.0.2") || r.Local != testAddr {
		t.Errorf("in the place of a longer address: %+v", r)
	}
}

// TestHeaderOverAnother: nothing of what lay in the memory of a header is left in it.
func TestHeaderOverAnother(t *testing.T) {
	h, err := (&Spec{Local: testLocal, SndBuf: 1 << 16, RcvBuf: 1 << 16}).header()
	if err != nil {
		t.Fatal(err)
	}
	clean, dirty := make([]byte, HeaderBytes), bytes.Repeat([]byte{0xff}, HeaderBytes)
	h.Put(clean)
	h.Put(dirty)
	var a, b Header
	if err := a.Parse(clean, h.RegionBytes); err != nil || a != h {
		t.Fatalf("%+v, %v; want %+v", a, err, h)
	}
	if err := b.Parse(dirty, h.RegionBytes); err != nil || b != h {
		t.Errorf("over other bytes: %+v, %v; want %+v", b, err, h)
	}
}

// TestHeaderOfAnotherSize: a header that says to be of another size is refused, however sound it is.
func TestHeaderOfAnotherSize(t *testing.T) {
	h, err := (&Spec{Local: testLocal, SndBuf: 1 << 16, RcvBuf: 1 << 16}).header()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint32{0, HeaderBytes - 8, HeaderBytes, HeaderBytes + 8} {
		b := make([]byte, HeaderBytes)
		h.Put(b)
		le.PutUint32(b[12:], n)
		le.PutUint32(b[HeaderBytes-4:], crc32.Checksum(b[:HeaderBytes-4], castagnoli))
		var got Header
		if err := got.Parse(b, h.RegionBytes); (err == nil) != (n == HeaderBytes) || err != nil && !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestLedgerInMemory: which file systems keep a ledger in memory alone.
func TestLedgerInMemory(t *testing.T) {
	for magic, want := range map[uint32]bool{unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true, unix.HUGETLBFS_MAGIC: true, unix.EXT4_SUPER_MAGIC: false, unix.OVERLAYFS_SUPER_MAGIC: false, 0: false} {
		if inMemory(magic) != want {
			t.Errorf("file system %#x in memory: %v; want %v", magic, !want, want)
		}
	}
	l := newLedger(t, LedgerSpec{Lanes: 1})
	var st unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	if got := l.InMemory(); got != inMemory(uint32(st.Type)) {
		t.Errorf("in memory: %v, on a file system of type %#x", got, st.Type)
	}
}

// TestOpenIsNotRefused: a descriptor that only opens a flow has no outcome, also when the
// daemon refuses all that it takes.
func TestOpenIsNotRefused(t *testing.T) {
	h, m := newPair(t, smallSpec(), nil)
	m.flow(1, 1, testDst)
	m.post(MakeWord(KindOpen, 0, 0), SendDesc{Flow: 1, Gen: 1, Cookie: noCookie}, nil)
	p := next(t, h)
	h.Taken(p, MakeTarget(testDst), false)
	h.Refused(p, 1)
	h.Publish()
	if l := m.events(); h.Err() != nil || len(l) != 0 || h.Outstanding() != 0 {
		t.Errorf("%v, events %v, %d outstanding", h.Err(), l, h.Outstanding())
	}
}

// TestDiscard: a socket that is closed lets its region go, whatever has no outcome.
func TestDiscard(t *testing.T) {
	h, m := newPair(t, smallSpec(), newLedger(t, LedgerSpec{Lanes: 1, Regions: 1}))
	m.send(0, 1, "x")
	p := next(t, h)
	h.Taken(p, MakeTarget(testDst), true)
	if err := h.Close(); err == nil {
		t.Fatal("closed with a descriptor on its way")
	}
	h.Leave()
	h.Discard()
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestRecoverDistrustsTheRegion: of a region whose words and descriptors cannot be, what can
// be is still told, and why it is not all; the daemon's words are set whatever the client's say.
func TestRecoverDistrustsTheRegion(t *testing.T) {
	for _, c := range []struct {
		what           string
		do             func(m *mate, r *Region)
		posted, unread int
		bad            bool
	}{
		{"as it was", func(*mate, *Region) {}, 1, 1, false},
		{"a full send ring", func(m *mate, r *Region) {
			for i := range r.Sends - 1 {
				m.send(0, uint32(i), "x")
			}
		}, 4, 1, false},
		{"a send tail too far", func(m *mate, r *Region) { r.SendTail().Store(uint64(r.Sends) + 1) }, 0, 1, true},
		{"a post of no kind behind", func(m *mate, r *Region) { m.post(0, SendDesc{}, nil) }, 1, 1, true},
		{"a receive head too far back", func(m *mate, r *Region) { r.RecvHead().Store(^uint64(3)) }, 1, 0, true},
		{"a receive head ahead", func(m *mate, r *Region) { r.RecvHead().Store(2) }, 1, 0, true},
		{"all was read", func(m *mate, r *Region) { r.RecvHead().Store(1) }, 1, 0, false},
	} {
		path := filepath.Join(t.TempDir(), "ledger")
		l, err := OpenLedger(path, LedgerSpec{Lanes: 1, Regions: 1})
		if err != nil {
			t.Fatal(err)
		}
		h, m := newPair(t, smallSpec(), l)
		m.send(0, 1, "posted")
		h.PlaceCopy(testDst, wire.One([]byte("unread")), NoLane, 0)
		h.Publish()
		c.do(m, h.r)
		rep, err := RecoverFile(path, func(*RegionRecord) *Region { return h.r })
		if err != nil || len(rep.Regions) != 1 {
			t.Fatalf("%s: %+v, %v", c.what, rep, err)
		}
		g := rep.Regions[0]
		if len(g.Posted) != c.posted || len(g.Unread) != c.unread || (g.Err != nil) != c.bad {
			t.Errorf("%s: %d posted, %d unread, %v; want %d, %d, wrong %v", c.what, len(g.Posted), len(g.Unread), g.Err, c.posted, c.unread, c.bad)
		}
		l.Close()
	}
}

// TestRecoverOfAnotherRegion: each of a region's marks is looked at.
func TestRecoverOfAnotherRegion(t *testing.T) {
	h, _ := newPair(t, smallSpec(), newLedger(t, LedgerSpec{Lanes: 1, Regions: 1}))
	good := RegionReport{RegionRecord: RegionRecord{ID: h.r.ID, Inode: h.r.Inode, Bytes: h.r.RegionBytes}}
	if good.readRegion(h.r); good.Err != nil || good.Region != h.r {
		t.Fatal(good.Err)
	}
	for what, change := range map[string]func(g *RegionReport){
		"id": func(g *RegionReport) { g.ID[3]++ }, "inode": func(g *RegionReport) { g.Inode++ }, "size": func(g *RegionReport) { g.Bytes++ },
	} {
		g := RegionReport{RegionRecord: RegionRecord{ID: h.r.ID, Inode: h.r.Inode, Bytes: h.r.RegionBytes}}
		change(&g)
		if g.readRegion(h.r); g.Err == nil || g.Region != nil {
			t.Errorf("a region with another %s was taken", what)
		}
	}
	none := RegionReport{}
	if none.readRegion(nil); none.Err != nil || none.Region != nil {
		t.Error(none.Err)
	}
}

// TestDrainMany: all rings are taken at once, however many there are.
func TestDrainMany(t *testing.T) {
	a, ear, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ear)
	for n := range 130 {
		for range n {
			a.Ring()
		}
		rang, over := Drain(ear)
		if rang != (n > 0) || over {
			t.Fatalf("%d rings: rang %v, over %v", n, rang, over)
		}
		if rang, _ := Drain(ear); rang {
			t.Fatalf("%d rings: some were left", n)
		}
	}
	a.Close()
	if rang, over := Drain(ear); rang || !over {
		t.Errorf("without a daemon: rang %v, over %v", rang, over)
	}
}

// TestAsleepForMore: when the daemon begins to lack room while it sleeps for posts, the client is
// told to ring for room too; anything else that changes meanwhile is no reason to.
func TestAsleepForMore(t *testing.T) {
	asleep := func() *Host {
		h, _ := newPair(t, smallSpec(), nil)
		if !h.Sleep() || h.r.DaemonSleeps().Load() != DaemonWaitsSend {
			t.Fatalf("asleep for %d", h.r.DaemonSleeps().Load())
		}
		return h
	}
	h := asleep()
	if h.WantRoom(true); h.r.DaemonSleeps().Load() != DaemonWaitsSend|DaemonWaitsRoom {
		t.Errorf("room is wanted, and it sleeps for %d", h.r.DaemonSleeps().Load())
	}
	h = asleep()
	if h.bug("a test"); h.r.DaemonSleeps().Load() != DaemonWaitsSend {
		t.Errorf("its accounts are wrong, and it sleeps for %d", h.r.DaemonSleeps().Load())
	}
	h = asleep()
	h.Wake()
	if h.WantRoom(true); h.r.DaemonSleeps().Load() != 0 {
		t.Errorf("it is awake, and the client would ring for %d", h.r.DaemonSleeps().Load())
	}
}
