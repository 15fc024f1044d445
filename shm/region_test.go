package shm

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

var testLocal = netip.MustParseAddrPort("10.0.0.1:4000")

func testSpec() Spec {
	return Spec{Local: testLocal, UID: 1000, PID: 42, SndBuf: 1 << 20, RcvBuf: 1 << 20, Instance: 77}
}

func newRegion(t testing.TB, s Spec) *Region {
	t.Helper()
	r, err := Create(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// heapRegion is a region in Go's memory, where the race detector looks.
func heapRegion(t testing.TB, s Spec) *Region {
	t.Helper()
	h, err := s.header()
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, h.RegionBytes/8)
	r := &Region{Header: h, FD: -1, mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), h.RegionBytes)}
	h.Put(r.mem)
	r.lay()
	return r
}

func TestRegionBothEnds(t *testing.T) {
	r := newRegion(t, testSpec())
	c, err := Open(r.FD, r.RegionBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ReadHeader(); err != nil {
		t.Fatal(err)
	}
	if c.Header != r.Header || c.Inode != r.Inode || c.Inode == 0 {
		t.Errorf("%+v\n%+v", c.Header, r.Header)
	}
	r.SendArena()[77] = 5
	c.SendTail().Store(3)
	if c.SendArena()[77] != 5 || r.SendTail().Load() != 3 {
		t.Error("not the same memory")
	}
	if r.SendArenaBytes != 4<<20 || r.RecvArenaBytes != 8<<20 {
		t.Errorf("arenas of %d and %d bytes", r.SendArenaBytes, r.RecvArenaBytes)
	}
	if n := r.Allocated(); n == 0 || n > 64<<10 {
		t.Errorf("%d bytes are allocated for an unused region", n)
	}
	for _, size := range []int64{0, int64(r.RegionBytes) + 4096} {
		if unix.Ftruncate(r.FD, size) == nil {
			t.Errorf("a client could make it %d bytes long", size)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(0, 0); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no memfd: %v", err)
	}
	fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	defer unix.Close(fd)
	unix.Ftruncate(fd, 1<<20)
	if _, err := Open(fd, 1<<20); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("unsealed: %v", err)
	}
	unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
	if _, err := Open(fd, 1<<21); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("another size: %v", err)
	}
	r, err := Open(fd, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.ReadHeader(); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no header: %v", err)
	}
	if _, err := View(fd); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no header, for looking at: %v", err)
	}
	for _, s := range []Spec{{}, {Local: testLocal, SndBuf: -1}, {Local: testLocal, MaxDatagram: MaxDatagram + 1}} {
		if _, err := Create(s); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := Create(Spec{Local: testLocal, Sends: 3}); err == nil {
		t.Error("a ring of 3 entries")
	}
}

// TestHeaderRefuses: each wrong field is found, also under a good checksum.
func TestHeaderRefuses(t *testing.T) {
	s := testSpec()
	h, _ := s.header()
	page := make([]byte, HeaderBytes)
	for name, spoil := range map[string]func(*Header){
		"region bytes":     func(h *Header) { h.RegionBytes-- },
		"ring not pow2":    func(h *Header) { h.Sends = 1000 },
		"no flows":         func(h *Header) { h.Flows = 0 },
		"ring outside":     func(h *Header) { h.EventOff = h.RegionBytes - 64 },
		"offset wraps":     func(h *Header) { h.RecvOff = ^uint64(63) },
		"on the header":    func(h *Header) { h.FlowOff = 64 },
		"misaligned":       func(h *Header) { h.ReleaseOff += 8 },
		"arena outside":    func(h *Header) { h.RecvArenaBytes *= 2 },
		"arena enormous":   func(h *Header) { h.SendArenaBytes = 1 << 63 },
		"too few releases": func(h *Header) { h.Releases = h.Receives / 2 },
	} {
		x := h
		spoil(&x)
		x.Put(page)
		if err := new(Header).Parse(page, h.RegionBytes); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h.Put(page)
	if err := new(Header).Parse(page, h.RegionBytes); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{0, 12, 20, 100, 1000, HeaderBytes - 1} {
		bad := bytes.Clone(page)
		bad[i] ^= 1
		if err := new(Header).Parse(bad, h.RegionBytes); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for _, v := range []byte{Version - 1, Version + 1} {
		page[8] = v
		if err := new(Header).Parse(page, h.RegionBytes); !errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Errorf("version %d: %v", v, err)
		}
	}
}
