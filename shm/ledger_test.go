package shm

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

var testAddr = testLocal.Addr()

func newLedger(t testing.TB, s LedgerSpec) *Ledger {
	t.Helper()
	l, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestLedgerSmall: an unused ledger takes next to nothing, and a new one
// replaces the file of the old one.
func TestLedgerSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	old, err := OpenLedger(path, LedgerSpec{Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	var st unix.Stat_t
	if unix.Stat(path, &st); st.Blocks*512 > 64<<10 || st.Mode&0o777 != 0o600 {
		t.Errorf("%d bytes are allocated, mode %#o", st.Blocks*512, st.Mode&0o777)
	}
	old.Close()
	l, err := OpenLedger(path, LedgerSpec{Instance: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rep, err := RecoverFile(path, nil)
	if err != nil || rep.Instance != 2 || len(rep.Regions)+len(rep.Lanes) != 0 || !rep.SameBoot {
		t.Errorf("%+v %v", rep, err)
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the new file was left behind")
	}
	for _, s := range []LedgerSpec{{Lanes: -1}, {Regions: 1 << 20}} {
		if _, err := OpenLedger(path, s); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := OpenLedger(filepath.Join(path, "x"), LedgerSpec{}); err == nil {
		t.Error("in a directory that is none")
	}
}

func TestLedgerLanes(t *testing.T) {
	l := newLedger(t, LedgerSpec{Lanes: 2})
	b, c := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	x, err := l.Lane(testAddr, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	if y, _ := l.Lane(testAddr, b, 0); y != x {
		t.Error("the same lane has two entries")
	}
	if _, err := l.Lane(testAddr, netip.MustParseAddr("::1"), 0); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	y, _ := l.Lane(testAddr, b, 1)
	if _, err := l.Lane(testAddr, c, 0); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("a third of two: %v", err)
	}
	*y.NextSeq = 5
	y.Free()
	var gone LaneRecord
	if gone.get(y.mem) {
		t.Errorf("an entry that was given back counts for who reads the ledger: %+v", gone)
	}
	z, err := l.Lane(testAddr, c, 0)
	if err != nil || z.Index() != 1 {
		t.Fatal(z.Index(), err)
	}
	var r LaneRecord
	if !r.get(z.mem) || r.NextSeq != 0 || r.Remote != c {
		t.Errorf("%+v", r)
	}
	var many []uint64
	for i := range uint64(MaxRefusals + 1) {
		many = append(many, i+1)
	}
	z.SetReceived(100, many)
	if r.get(z.mem); !r.MoreRefusals || len(r.Refusals) != 0 {
		t.Errorf("%+v", r)
	}
	z.SetReceived(100, many[:MaxRefusals])
	if r.get(z.mem); r.MoreRefusals || len(r.Refusals) != MaxRefusals {
		t.Errorf("%+v", r)
	}
	z.SetReceived(100, nil)
	if r.get(z.mem); r.MoreRefusals || len(r.Refusals) != 0 {
		t.Errorf("%+v", r)
	}
	// What stands there already is not stored again.
	word64(z.mem[72:]).Store(1)
	if z.SetReceived(100, nil); word64(z.mem[72:]).Load() != 1 {
		t.Error("100 was stored twice")
	}
	if z.SetReceived(101, nil); word64(z.mem[72:]).Load() != 101 {
		t.Error("101 was not stored")
	}
	// Without a ledger all of it is nothing.
	var no *Ledger
	n, err := no.Lane(testAddr, b, 0)
	n.SetPeer(1, 2, 3)
	n.SetReceived(1, nil)
	n.Free()
	if err != nil || n.Index() != NoLane || no.Commit(7) != nil || no.Close() != nil {
		t.Error("without a ledger")
	}
}

// TestRefusalsInBetween: a crash between any two stores leaves every refusal
// that stays in the list.
func TestRefusalsInBetween(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	for range 2000 {
		l := &LedgerLane{mem: make([]byte, laneBytes)}
		var list []uint64
		for s := range uint64(rnd.Intn(MaxRefusals)) {
			list = append(list, 10+s)
		}
		l.setRefusals(list)
		var next []uint64
		for _, s := range list {
			if rnd.Intn(3) > 0 {
				next = append(next, s)
			}
		}
		stays := slices.Clone(next)
		for range rnd.Intn(3) {
			if len(next) < MaxRefusals {
				next = append(next, 1000+uint64(rnd.Intn(100)))
			}
		}
		slices.Sort(next)
		// setRefusals up to store k.
		for k := range len(next) + 1 {
			mem := slices.Clone(l.mem)
			for i, s := range next[:k] {
				le.PutUint64(mem[88+8*i:], s)
			}
			le.PutUint32(mem, 1)
			le.PutUint64(mem[72:], 500)
			mem[40] = 4
			var r LaneRecord
			r.get(mem)
			for _, s := range stays {
				if !slices.Contains(r.Refusals, s) {
					t.Fatalf("%v to %v: %d is missing after %d stores: %v", list, next, s, k, r.Refusals)
				}
			}
		}
	}
}

func TestLedgerRegions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := OpenLedger(path, LedgerSpec{Regions: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h, m := newPair(t, testSpec(), l)
	var ids []uint32
	for i := range 1000 { // more than a page of the send table
		m.send(uint64(i)*64, uint32(i), "x")
		id, cell := h.Taken(next(t, h), MakeTarget(testDst), true)
		*cell = uint64(i + 1)
		ids = append(ids, id)
	}
	rep, err := RecoverFile(path, func(*RegionRecord) *Region { return h.r })
	if err != nil || len(rep.Regions) != 1 || rep.Regions[0].Err != nil || len(rep.Regions[0].Open) != 1000 {
		t.Fatalf("%+v %v", rep, err)
	}
	for i, s := range rep.Regions[0].Open {
		if s.Cell != uint64(i+1) || s.Cookie != uint32(i) || s.Dst.AddrPort() != testDst || !s.IsSent || s.Seq != uint64(i+1) {
			t.Fatalf("%d: %+v", i, s)
		}
	}
	if rep, _ := RecoverFile(path, func(*RegionRecord) *Region { return newRegion(t, testSpec()) }); rep.Regions[0].Err == nil {
		t.Error("another region was taken for this one")
	}
	h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0)
	h.Publish() // by itself, with no lane
	if rep, _ := RecoverFile(path, func(*RegionRecord) *Region { return h.r }); rep.Regions[0].RecvTail != 1 || rep.Regions[0].UnreadDatagrams() != 1 {
		t.Errorf("%+v", rep.Regions[0].RegionRecord)
	}
	h2, _ := newPair(t, testSpec(), l)
	if _, err := l.Region(h.r); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("a third of two: %v", err)
	}
	for i, id := range ids {
		h.Outcome(id, uint64(i)*10, 1, Delivered, 0, true)
		if h.Publish(); i%100 == 0 {
			m.events()
		}
	}
	m.events()
	h.Publish()
	if h.Outstanding() != 0 || h.Err() != nil {
		t.Error(h.Outstanding(), h.Err())
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h, _ = newPair(t, testSpec(), l) // in the place of the first, with a clean table
	rep, err = RecoverFile(path, nil)
	if err != nil || len(rep.Regions) != 2 || len(rep.Regions[0].Open) != 0 || rep.Regions[0].Err != nil || rep.Regions[0].ID != h.r.ID {
		t.Errorf("%+v %v", rep, err)
	}
	h2.Close()
}

// TestLedgerFull: when the file system has no room a client keeps what it has, and
// the daemon does not die of it.
func TestLedgerFull(t *testing.T) {
	l := newLedger(t, LedgerSpec{})
	h, m := newPair(t, testSpec(), l)
	fd := l.fd
	l.fd = -1 // fallocate fails
	var ids []uint32
	for i := range sendsPerPage {
		m.send(0, uint32(i), "x")
		id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
		ids = append(ids, id)
	}
	m.send(0, 99, "x")
	var p Post
	if ok, err := h.Next(&p); ok || err != nil {
		t.Errorf("%v %v: an entry that has no memory", ok, err)
	}
	if h.HasPosts() {
		t.Error("it would be tried again and again")
	}
	h.Outcome(ids[0], 0, 1, Delivered, 0, true)
	h.Publish()
	h.Taken(next(t, h), MakeTarget(testDst), true)
	if _, err := l.Region(h.r); err == nil {
		t.Error("a region without memory")
	}
	if err := l.Commit(0); !errors.Is(err, unix.ENOMEM) {
		t.Error(err)
	}
	l.fd = fd
	if err := l.Commit(64); err == nil {
		t.Error("a local address too many")
	}
}

// TestPublishAll: many regions and a lane at once, and a redo that changes nothing twice.
func TestPublishAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := OpenLedger(path, LedgerSpec{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Commit(3); err != nil {
		t.Fatal(err)
	}
	lane, _ := l.Lane(testAddr, testDst.Addr(), 0)
	var hosts []*Host
	var mates []*mate
	for range 100 { // more than a page of records
		h, m := newPair(t, smallSpec(), l)
		hosts, mates = append(hosts, h, h), append(mates, m) // twice each: no harm
	}
	for i, m := range mates {
		m.r.ClientSleeps().Store(ClientWaitsRecv)
		hosts[2*i].PlaceCopy(testDst, wire.One([]byte{byte(i)}), lane.Index(), uint64(i))
	}
	l.PublishAll(3, lane, 100, []uint64{7}, hosts)
	rung := 0
	for i, m := range mates {
		if hosts[2*i].Publish() {
			rung++
		}
		if got := m.received(true); len(got) != 1 {
			t.Fatalf("region %d has %v", i, got)
		}
	}
	if rung != 100 {
		t.Errorf("%d of 100 were to be rung", rung)
	}
	l.PublishAll(3, lane, 101, nil, nil) // only the lane
	l.PublishAll(3, nil, 0, nil, hosts)
	rep, err := RecoverFile(path, nil)
	if err != nil || rep.Redone != 0 || rep.Lanes[0].Received != 101 {
		t.Errorf("%+v %v", rep, err)
	}
	// As if it had died with the record valid.
	rec := l.mem[l.h.CommitOff+3*commitBytes(l.h.Regions):]
	le.PutUint32(rec[8:], 0)
	le.PutUint32(rec[12:], NoLane)
	le.PutUint64(rec[16:], 101)
	le.PutUint32(rec, 1)
	for range 2 {
		rep, err = RecoverFile(path, nil)
		if err != nil || rep.Redone != 1 || rep.Regions[99].RecvTail != 1 {
			t.Fatalf("%+v %v", rep, err)
		}
	}
	le.PutUint64(rec[16:], 50) // a lane does not go back
	if _, err := RecoverFile(path, nil); !errors.Is(err, unix.EBADMSG) {
		t.Error(err)
	}
}

// TestRecoverLocal: datagrams that stay at their address are not delivered twice.
func TestRecoverLocal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := OpenLedger(path, LedgerSpec{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Commit(0)
	lane, _ := l.Lane(testAddr, testAddr, LocalLane)
	far, _ := l.Lane(testAddr, testDst.Addr(), 0)
	a, am := newPair(t, testSpec(), l)
	b, bm := newPair(t, testSpec(), l)
	for i := range uint64(2) {
		am.send(i*64, uint32(i), "x")
		p := next(t, a)
		_, cell := a.Taken(p, MakeTarget(testLocal), true)
		*cell = LocalLane<<CellLane | (i + 1)
		b.PlaceCopy(testLocal, wire.One(p.Body), lane.Index(), i+1)
		if i == 0 {
			l.PublishBoth(0, far, 9, nil, lane, i+1, []*Host{b})
		}
	} // it dies: the second is placed and was not published
	rep, err := RecoverFile(path, func(g *RegionRecord) *Region {
		if g.ID == a.r.ID {
			return a.r
		}
		return b.r
	})
	if err != nil {
		t.Fatal(err)
	}
	open := rep.Regions[0].Open
	if rep.Lanes[far.Index()].Received != 9 || rep.Lanes[lane.Index()].Received != 1 {
		t.Errorf("%+v", rep.Lanes)
	}
	if len(open) != 2 || !open[0].Arrived || open[1].Arrived || rep.Regions[1].UnreadDatagrams() != 1 || len(bm.received(false)) != 1 {
		t.Errorf("%+v, %d unread", open, rep.Regions[1].UnreadDatagrams())
	}
}

func TestRecoverRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger")
	l, err := OpenLedger(path, LedgerSpec{Lanes: 1, Regions: 1, Commits: 1})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	os.Chmod(path, 0o644)
	if _, err := RecoverFile(path, nil); !errors.Is(err, unix.EACCES) {
		t.Errorf("readable by all: %v", err)
	}
	os.Chmod(path, 0o600)
	os.Symlink(path, filepath.Join(dir, "link"))
	if _, err := RecoverFile(filepath.Join(dir, "link"), nil); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link: %v", err)
	}
	if _, err := RecoverFile(dir, nil); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := RecoverFile(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	os.Truncate(path, 5000)
	if _, err := RecoverFile(path, nil); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("cut off: %v", err)
	}
	b, _ := os.ReadFile(path)
	b[8] = 9
	if _, err := Recover(b, nil); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("version 9: %v", err)
	}
	if _, err := Recover(nil, nil); !errors.Is(err, unix.EBADMSG) {
		t.Error(err)
	}
}

// smallLedger is a ledger in a few pages, with everything in it.
func smallLedger() []byte {
	h := LedgerHeader{Instance: 1, Lanes: 2, Regions: 2, Sends: 8, Commits: 1}
	h.lay()
	b := make([]byte, h.FileBytes)
	h.Put(b)
	lane := b[h.LaneOff:]
	le.PutUint32(lane, 1)
	lane[40] = 4
	g := RegionRecord{Local: testLocal, Bytes: 1 << 20}
	g.put(b[h.RegionOff:])
	r := &LedgerRegion{words: recordWords(b[h.RegionOff:])}
	r.took(0, 3)
	for i := range uint64(2) {
		var e entry
		s := SendRecord{Order: 1 + i, Word: MakeWord(KindEach, 3, 3), Dst: MakeTarget(testDst)}
		s.put(&e)
		copy(b[h.SendOff+i*entryBytes:], entryBytesOf(&e))
	}
	c := b[h.CommitOff:]
	le.PutUint32(c, 1)
	le.PutUint32(c[4:], 1)
	le.PutUint32(c[12:], NoLane)
	le.PutUint64(c[16:], 5)
	le.PutUint64(c[commitHead+8:], 2)
	return b
}

// FuzzRecover: no ledger makes Recover fail otherwise than by saying so.
func FuzzRecover(f *testing.F) {
	f.Add(uint32(0), []byte{})
	for _, off := range []uint32{4096, 8192, 12288, 16384} {
		f.Add(off, []byte{1, 2, 3, 4})
	}
	good := smallLedger()
	r, err := Create(smallSpec())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { r.Close() })
	b := make([]byte, len(good))
	f.Fuzz(func(t *testing.T, off uint32, wild []byte) {
		copy(b, good)
		copy(b[HeaderBytes+off%uint32(len(b)-HeaderBytes):], wild)
		Recover(b, func(g *RegionRecord) *Region {
			g.ID, g.Inode, g.Bytes = r.ID, r.Inode, r.RegionBytes
			return r
		})
	})
}

// TestRecoverWild does some of that always, in all of the ledger.
func TestRecoverWild(t *testing.T) {
	good := smallLedger()
	if rep, err := Recover(slices.Clone(good), nil); err != nil || rep.Redone != 1 || len(rep.Regions) != 1 || rep.Regions[0].Err != nil {
		t.Fatalf("%+v %v", rep, err)
	}
	r := newRegion(t, smallSpec())
	rnd := rand.New(rand.NewSource(1))
	refused, doubted := 0, 0
	for range 5000 {
		b := slices.Clone(good)
		for range 1 + rnd.Intn(4) {
			off := HeaderBytes + rnd.Intn(len(b)-HeaderBytes-8)
			if rnd.Intn(2) == 0 {
				off = HeaderBytes + rnd.Intn(4)*4096 + rnd.Intn(200)
			}
			le.PutUint64(b[off:], rnd.Uint64()>>rnd.Intn(64))
		}
		r.SendTail().Store(uint64(rnd.Intn(6)))
		rep, err := Recover(b, func(g *RegionRecord) *Region {
			g.ID, g.Inode, g.Bytes = r.ID, r.Inode, r.RegionBytes
			return r
		})
		switch {
		case err != nil:
			refused++
		case len(rep.Regions) == 1 && rep.Regions[0].Err != nil:
			doubted++
		}
	}
	if refused == 0 || doubted == 0 {
		t.Error(fmt.Sprint(refused, " refused, ", doubted, " doubted: the test tests nothing"))
	}
}

// TestLedgerNoAddressSpace: a ledger that cannot be mapped is refused with the reason, and
// leaves no file and no descriptor.
func TestLedgerNoAddressSpace(t *testing.T) {
	const room = 1 << 30 // for the test itself, which goes on meanwhile
	s := LedgerSpec{Lanes: 1 << 24}
	h := LedgerHeader{Lanes: 1 << 24, Regions: 1024, Commits: 64, Sends: MaxOutstanding}
	if h.lay(); h.FileBytes < 2*room {
		t.Fatalf("the largest ledger has %d bytes", h.FileBytes)
	}
	var was, now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &was); err != nil {
		t.Fatal(err)
	}
	var vm int
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(b), &vm); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ledger")
	files := openFDs(t)
	now = was
	now.Cur = uint64(vm*os.Getpagesize()) + room
	if err := unix.Setrlimit(unix.RLIMIT_AS, &now); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLedger(path, s)
	if err := unix.Setrlimit(unix.RLIMIT_AS, &was); err != nil {
		t.Fatal(err)
	}
	if l != nil || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("%v, %v", l, err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 || openFDs(t) != files {
		t.Errorf("%v are left, %d files open before, %d after", left, files, openFDs(t))
	}
	if l, err = OpenLedger(path, LedgerSpec{}); err != nil {
		t.Errorf("with address space again: %v", err)
	}
	l.Close()
}

// TestLedgerPages: the pages of a part of the file are allocated, and no others: they are
// the host's memory.
func TestLedgerPages(t *testing.T) {
	const page = 4096
	for _, c := range []struct{ off, n, first, last uint64 }{
		{100 * page, page, 100, 100}, {101 * page, 1, 101, 101}, {101*page + 4095, 1, 101, 101}, {101*page + 4095, 2, 101, 102},
		{103 * page, 3 * page, 103, 105}, {103*page + 1, 3 * page, 103, 106}, {127 * page, 2 * page, 127, 128},
	} {
		l := newLedger(t, LedgerSpec{})
		had := slices.Clone(l.have)
		if err := l.ensure(c.off, c.n); err != nil {
			t.Fatal(err)
		}
		for p := c.first; p <= c.last; p++ {
			had[p/64] |= 1 << (p % 64)
		}
		if !slices.Equal(l.have, had) {
			t.Errorf("%d bytes from %d on: more or less than pages %d to %d", c.n, c.off, c.first, c.last)
		}
		if !l.allocated(c.first, c.last+1) || l.allocated(c.first-1, c.last+1) || l.allocated(c.first, c.last+2) {
			t.Errorf("pages %d to %d are not told from their neighbours", c.first, c.last)
		}
	}
}
