package shm

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// What a region may be asked for, up to each limit exactly; what is not said is the
// default, and what is said stays.
func TestSpecEdges(t *testing.T) {
	ok := func(edit func(*Spec)) Spec {
		s := testSpec()
		s.SendArena, s.RecvArena = 1<<20, 1<<20 // the buffers may be larger: they are only numbers here
		edit(&s)
		return s
	}
	for what, c := range map[string]struct {
		s    Spec
		good bool
	}{
		"plain":                  {ok(func(*Spec) {}), true},
		"no buffers":             {ok(func(s *Spec) { s.SndBuf, s.RcvBuf = 0, 0 }), true},
		"a send buffer below 0":  {ok(func(s *Spec) { s.SndBuf = -1 }), false},
		"a recv buffer below 0":  {ok(func(s *Spec) { s.RcvBuf = -1 }), false},
		"the largest buffers":    {ok(func(s *Spec) { s.SndBuf, s.RcvBuf = 1<<34, 1<<34 }), true},
		"a byte more to send":    {ok(func(s *Spec) { s.SndBuf = 1<<34 + 1 }), false},
		"a byte more to receive": {ok(func(s *Spec) { s.RcvBuf = 1<<34 + 1 }), false},
		"the largest datagram":   {ok(func(s *Spec) { s.MaxDatagram = MaxDatagram }), true},
		"a larger datagram":      {ok(func(s *Spec) { s.MaxDatagram = MaxDatagram + 1 }), false},
		"a datagram below 0":     {ok(func(s *Spec) { s.MaxDatagram = -1 }), false},
		"nowhere":                {ok(func(s *Spec) { s.Local = netip.AddrPort{} }), false},
	} {
		_, err := c.s.header()
		if (err == nil) != c.good || !c.good && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s := testSpec()
	h, err := s.header()
	if err != nil {
		t.Fatal(err)
	}
	if got := [...]uint32{h.Flows, h.Sends, h.Events, h.Receives, h.Releases, h.MaxDatagram}; got != [...]uint32{1024, 1024, 2048, 4096, 8192, 1 << 20} {
		t.Errorf("the defaults are %v", got)
	}
	s = Spec{Local: testLocal, UID: 1, PID: 2, SndBuf: 3, RcvBuf: 4, MaxDatagram: 5, Instance: 6,
		Flows: 8, Sends: 16, Events: 32, Receives: 64, Releases: 128, SendArena: 1 << 12, RecvArena: 1 << 13}
	if h, err = s.header(); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(h.UID, h.PID, h.SndBuf, h.RcvBuf, h.MaxDatagram, h.Instance, h.Flows, h.Sends, h.Events, h.Receives, h.Releases, h.SendArenaBytes, h.RecvArenaBytes)
	if want := "1 2 3 4 5 6 8 16 32 64 128 4096 8192"; got != want {
		t.Errorf("asked for %s, got %s", want, got)
	}
	rng, ends := rand.New(rand.NewSource(1)), 0
	for range 2000 {
		few := func() int { return 8 << rng.Intn(9) }
		s := Spec{Local: testLocal, Flows: few(), Sends: few(), Events: few(), Receives: few(), SendArena: 1 << (12 + rng.Intn(6)), RecvArena: 1 << (12 + rng.Intn(6))}
		s.Releases = s.Receives << rng.Intn(3)
		h, err := s.header()
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if laidOut(t, &h); t.Failed() {
			t.Fatalf("%+v", s)
		}
		if h.RecvArenaOff+h.RecvArenaBytes == h.RegionBytes {
			ends++
		}
	}
	if ends == 0 {
		t.Error("no part ends where the region does")
	}
	// Arenas that nobody asks for are made of the buffers: twice what may be in them.
	for _, c := range []struct {
		snd, rcv   int
		send, recv uint64
	}{{0, 0, 2 << 20, 2 << 20}, {1 << 20, 1 << 20, 4 << 20, 8 << 20}, {1<<20 + 1, 1, 8 << 20, 4 << 20}, {3 << 20, 3 << 20, 8 << 20, 16 << 20}} {
		s := Spec{Local: testLocal, SndBuf: c.snd, RcvBuf: c.rcv}
		if h, err := s.header(); err != nil || h.SendArenaBytes != c.send || h.RecvArenaBytes != c.recv {
			t.Errorf("buffers of %d and %d: arenas of %d and %d (%v), want %d and %d", c.snd, c.rcv, h.SendArenaBytes, h.RecvArenaBytes, err, c.send, c.recv)
		}
	}
	for n, want := range map[uint64]uint64{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1<<20 - 1: 1 << 20, 1 << 20: 1 << 20, 1<<20 + 1: 2 << 20} {
		if got := ceilPow2(n); got != want {
			t.Errorf("%d becomes %d, want %d", n, got, want)
		}
	}
}

// laidOut checks that the parts lie one behind the other, each at a whole page, without a gap
// and in two halves.
func laidOut(t *testing.T, h *Header) {
	page := func(n uint64) uint64 { return (n + pageBytes - 1) / pageBytes * pageBytes }
	part := func(n uint64) uint64 { return (n + partBytes - 1) / partBytes * partBytes }
	at := page(HeaderBytes + wordsBytes)
	for i, p := range []struct{ off, bytes uint64 }{
		{h.FlowOff, uint64(h.Flows) * 64}, {h.SendOff, uint64(h.Sends) * 64}, {h.ReleaseOff, uint64(h.Releases) * 8}, {h.SendArenaOff, h.SendArenaBytes},
		{h.FlowStateOff, uint64(h.Flows) * 8}, {h.EventOff, uint64(h.Events) * 64}, {h.RecvOff, uint64(h.Receives) * 64}, {h.RecvArenaOff, h.RecvArenaBytes},
	} {
		if i == 4 {
			if at = part(at); h.DaemonOff != at {
				t.Errorf("the daemon's part is at %d, want %d", h.DaemonOff, at)
			}
		}
		if p.off != at {
			t.Errorf("part %d is at %d, want %d", i, p.off, at)
		}
		at = page(at + p.bytes)
	}
	if h.RegionBytes != part(at) {
		t.Errorf("%d bytes in all, want %d", h.RegionBytes, part(at))
	}
}

// TestLargestArena: an arena has 2^40 bytes at most.
func TestLargestArena(t *testing.T) {
	s := Spec{Local: testLocal, SendArena: 1 << 16, RecvArena: 1 << 16}
	for _, c := range []struct {
		bytes uint64
		good  bool
	}{{1 << 40, true}, {1 << 41, false}} {
		h, err := s.header()
		if err != nil {
			t.Fatal(err)
		}
		h.RecvArenaBytes = c.bytes
		h.RegionBytes = h.RecvArenaOff + c.bytes
		if err := h.check(h.RegionBytes); (err == nil) != c.good {
			t.Errorf("%d bytes: %v", c.bytes, err)
		}
	}
}

// TestHeaderFits: what fits to the last byte is good, and what ends a byte later is not.
func TestHeaderFits(t *testing.T) {
	s := Spec{Local: testLocal, Flows: 8, Sends: 8, Events: 8, Receives: 8, Releases: 8, SendArena: 1 << 16, RecvArena: 1 << 16}
	base, err := s.header()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		edit func(*Header)
		good bool
	}{
		"as it is":                              {func(*Header) {}, true},
		"as many releases as receives":          {func(h *Header) { h.Releases = h.Receives }, true},
		"fewer":                                 {func(h *Header) { h.Releases = h.Receives / 2 }, false},
		"an arena up to the border":             {func(h *Header) { h.SendArenaOff = h.DaemonOff - h.SendArenaBytes }, true},
		"a unit over the border":                {func(h *Header) { h.SendArenaOff = h.DaemonOff - h.SendArenaBytes + UnitBytes }, false},
		"a table behind the words":              {func(h *Header) { h.FlowOff = HeaderBytes + wordsBytes }, true},
		"a table on the words":                  {func(h *Header) { h.FlowOff = HeaderBytes + wordsBytes - UnitBytes }, false},
		"states at the border":                  {func(h *Header) { h.FlowStateOff = h.DaemonOff }, true},
		"states before the border":              {func(h *Header) { h.FlowStateOff = h.DaemonOff - UnitBytes }, false},
		"an arena up to the end":                {func(h *Header) { h.RecvArenaOff = h.RegionBytes - h.RecvArenaBytes }, true},
		"a unit beyond":                         {func(h *Header) { h.RecvArenaOff = h.RegionBytes - h.RecvArenaBytes + UnitBytes }, false},
		"half a unit off":                       {func(h *Header) { h.SendOff += UnitBytes / 2 }, false},
		"one flow":                              {func(h *Header) { h.Flows = 1 }, false}, // its state takes no unit
		"states of less than a unit":            {func(h *Header) { h.Flows = 4 }, false},
		"one send":                              {func(h *Header) { h.Sends = 1 }, true},
		"no sends":                              {func(h *Header) { h.Sends = 0 }, false},
		"seven sends":                           {func(h *Header) { h.Sends = 7 }, false},
		"an arena of a unit":                    {func(h *Header) { h.SendArenaBytes = UnitBytes }, true},
		"an arena of half a unit":               {func(h *Header) { h.SendArenaBytes = UnitBytes / 2 }, false},
		"a border behind the words":             {func(h *Header) { h.DaemonOff = HeaderBytes }, false},
		"a border at the end of the words":      {func(h *Header) { h.DaemonOff = 0 }, false},
		"an arena of more than a terabyte":      {func(h *Header) { h.RecvArenaBytes = 1 << 41 }, false},
		"the receive ring where the states are": {func(h *Header) { h.RecvOff = h.DaemonOff }, true},
	} {
		h := base
		c.edit(&h)
		if err := h.check(h.RegionBytes); (err == nil) != c.good || !c.good && !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := base.check(base.RegionBytes + 1); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a byte more is mapped: %v", err)
	}
}

// TestLedgerHeaderRefuses: each wrong field of a ledger's header is found, also under a
// good checksum, and what fits to the last byte is good.
func TestLedgerHeaderRefuses(t *testing.T) {
	base := LedgerHeader{Instance: 9, Lanes: 8, Regions: 4, Sends: 64, Commits: 2, Boot: [16]byte{1, 2, 3}}
	base.lay()
	page := make([]byte, HeaderBytes)
	base.Put(page)
	var back LedgerHeader
	if err := back.Parse(page, base.FileBytes); err != nil || back != base {
		t.Fatalf("%+v, %v, want %+v", back, err, base)
	}
	for what, c := range map[string]struct {
		edit func(*LedgerHeader)
		good bool
	}{
		"another size":         {func(h *LedgerHeader) { h.FileBytes++ }, false},
		"commits misaligned":   {func(h *LedgerHeader) { h.CommitOff += 8 }, false},
		"lanes misaligned":     {func(h *LedgerHeader) { h.LaneOff += 8 }, false},
		"on the header":        {func(h *LedgerHeader) { h.CommitOff = HeaderBytes - UnitBytes }, false},
		"behind the header":    {func(h *LedgerHeader) { h.LaneOff = HeaderBytes }, true},
		"regions at the end":   {func(h *LedgerHeader) { h.RegionOff = h.FileBytes - 4*recordBytes }, true},
		"a unit beyond it":     {func(h *LedgerHeader) { h.RegionOff = h.FileBytes - 4*recordBytes + UnitBytes }, false},
		"begin behind the end": {func(h *LedgerHeader) { h.SendOff = h.FileBytes + UnitBytes }, false},
		"none, at the end":     {func(h *LedgerHeader) { h.Lanes, h.LaneOff = 0, h.FileBytes }, true},
		"more than fit":        {func(h *LedgerHeader) { h.Sends *= 2 }, false},
		"a product that wraps": {func(h *LedgerHeader) { h.Regions, h.Sends = 1<<31, 1<<31 }, false},
	} {
		h := base
		c.edit(&h)
		h.Put(page)
		if err := new(LedgerHeader).Parse(page, base.FileBytes); (err == nil) != c.good || !c.good && !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", what, err)
		}
	}
	base.Put(page)
	for _, i := range []int{0, 7, 12, 16, 40, 90, HeaderBytes - 1} {
		page[i] ^= 1
		if err := new(LedgerHeader).Parse(page, base.FileBytes); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		page[i] ^= 1
	}
	if err := new(LedgerHeader).Parse(page[:HeaderBytes-1], base.FileBytes); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a header cut short: %v", err)
	}
	page[8]++
	if err := new(LedgerHeader).Parse(page, base.FileBytes); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("another version: %v", err)
	}
}

// What a ledger may be asked for, up to each limit exactly.
func TestLedgerSpecEdges(t *testing.T) {
	for what, c := range map[string]struct {
		s    LedgerSpec
		good bool
	}{
		"all lanes":                   {LedgerSpec{Lanes: 1 << 24, Regions: 1, Commits: 1}, true},
		"a lane more":                 {LedgerSpec{Lanes: 1<<24 + 1, Regions: 1, Commits: 1}, false},
		"all local addresses":         {LedgerSpec{Lanes: 1, Regions: 1, Commits: 1 << 16}, true},
		"a local address more":        {LedgerSpec{Lanes: 1, Regions: 1, Commits: 1<<16 + 1}, false},
		"a region more":               {LedgerSpec{Lanes: 1, Regions: 1<<16 + 1, Commits: 1}, false},
		"a number of regions below 0": {LedgerSpec{Regions: -1}, false},
		"of local addresses":          {LedgerSpec{Commits: -1}, false},
		"of lanes":                    {LedgerSpec{Lanes: -1}, false},
	} {
		l, err := OpenLedger(filepath.Join(t.TempDir(), "l"), c.s)
		if (err == nil) != c.good || !c.good && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
		if l.Close() != nil {
			t.Errorf("%s: it does not close", what)
		}
	}
	l := newLedger(t, LedgerSpec{Instance: 5})
	if h := l.h; h.Lanes != 16384 || h.Regions != 1024 || h.Commits != 64 || h.Sends != MaxOutstanding || h.Instance != 5 || h.Boot == [16]byte{} {
		t.Errorf("the defaults are %+v", h)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil || l.fd != -1 || l.mem != nil {
		t.Errorf("closed twice: %v", err)
	}
	l = newLedger(t, LedgerSpec{Commits: 3, Regions: 2, Lanes: 2})
	for i, good := range map[int]bool{-1: false, 0: true, 2: true, 3: false} {
		if err := l.Commit(i); (err == nil) != good || !good && !errors.Is(err, unix.ENOMEM) {
			t.Errorf("local address number %d of 3: %v", i, err)
		}
	}
	if n := l.Regions(); n != 0 {
		t.Errorf("%d regions in a new ledger", n)
	}
	a, err1 := l.PrepareRegion()
	b, err2 := l.PrepareRegion()
	if _, err := l.PrepareRegion(); err1 != nil || err2 != nil || !errors.Is(err, unix.ENOMEM) || l.Regions() != 2 {
		t.Errorf("%v, %v, and a third of 2: %v; %d regions", err1, err2, err, l.Regions())
	}
	a.Free()
	if l.Regions() != 1 {
		t.Errorf("%d regions after one has gone", l.Regions())
	}
	b.Free()
}

// Without a ledger everything that concerns one does nothing.
func TestNoLedger(t *testing.T) {
	var l *Ledger
	lane, err := l.Lane(testAddr, testAddr, 0)
	g, err2 := l.PrepareRegion()
	if err != nil || err2 != nil || lane != nil || g != nil || l.Commit(5) != nil || l.PrepareLanes(testAddr, testAddr, 1) != nil || l.Regions() != 0 || l.Close() != nil {
		t.Errorf("%v %v %v %v", lane, err, g, err2)
	}
	if lane.Index() != NoLane {
		t.Errorf("no lane is number %d", lane.Index())
	}
	lane.SetPeer(1, 2, 3)
	lane.SetReceived(5, nil)
	lane.Free()
	g.Begin(nil)
	g.Free()
	g.gone()
	h, m := newPair(t, testSpec(), nil)
	if _, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0); !ok {
		t.Fatal("no room")
	}
	l.PublishAll(0, nil, 0, nil, []*Host{h})
	if got := m.received(true); len(got) != 1 {
		t.Errorf("received %v", got)
	}
}
