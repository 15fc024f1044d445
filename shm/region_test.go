package shm

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
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
	t.Cleanup(func() {
		r.Close()
		r.Disown()
	})
	touchAll(r)
	r.SetLocal(r.Local)
	return r
}

// touchAll does what clients do: the daemon takes nothing that they have not touched.
func touchAll(r *Region) {
	for at := uint64(0); at < r.DaemonOff; at += touchBytes {
		r.word64(at).Load()
	}
}

// daemonFile opens the daemon's part once more, to write, as only a daemon could.
func daemonFile(t testing.TB, r *Region) *os.File {
	t.Helper()
	if err := unix.Fchmod(r.ownFD, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.ownFD), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// heapRegion is a region in Go's memory, where the race detector looks.
func heapRegion(t testing.TB, s Spec) *Region {
	t.Helper()
	h, err := s.header()
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, h.RegionBytes/8)
	for i := range words { // a host looks whether what it is pointed to has been touched
		words[i] = 0
	}
	r := &Region{Header: h, FD: -1, LendFD: -1, ownFD: -1, mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), h.RegionBytes)}
	h.Put(r.mem)
	r.lay()
	return r
}

func TestRegionBothEnds(t *testing.T) {
	r := newRegion(t, testSpec())
	c, err := Open(r.FD, r.LendFD, r.RegionBytes)
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
	for _, size := range []int64{0, int64(r.RegionBytes) + 4096} {
		if unix.Ftruncate(r.FD, size) == nil || unix.Ftruncate(r.LendFD, size) == nil {
			t.Errorf("a client could make it %d bytes long", size)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(0, 0, 0); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no memfd: %v", err)
	}
	memfd := func(bytes int64) int {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		unix.Ftruncate(fd, bytes)
		return fd
	}
	seal := func(fd int) int {
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
		return fd
	}
	part := seal(memfd(1 << 20))
	for name, pair := range map[string][2]int{
		"unsealed":                    {memfd(1 << 20), part},
		"the daemon's part unsealed":  {part, memfd(1 << 20)},
		"no memfd":                    {0, part},
		"the daemon's part no memfd":  {part, 0},
		"another size":                {part, seal(memfd(2 << 20))},
		"a part of half a page":       {seal(memfd(1<<20 - 100)), seal(memfd(1<<20 + 100))},
		"nothing of the client's":     {seal(memfd(0)), seal(memfd(2 << 20))},
		"nothing of the daemon's":     {seal(memfd(2 << 20)), seal(memfd(0))},
		"a daemon's part of odd size": {part, seal(memfd(1<<20 + 4096))},
	} {
		if r, err := Open(pair[0], pair[1], 2<<20); !errors.Is(err, unix.EBADMSG) {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	r, err := Open(part, part, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.ReadHeader(); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no header: %v", err)
	}
	if _, err := View(part, part); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("no header, for looking at: %v", err)
	}
	other := newRegion(t, testSpec())
	page := make([]byte, HeaderBytes)
	for _, d := range []int64{-partBytes, 0, partBytes} { // sizes as in the header, and the border elsewhere
		client, daemon := seal(memfd(int64(other.DaemonOff)+d)), seal(memfd(int64(other.RegionBytes-other.DaemonOff)-d))
		if r, err = Open(client, daemon, other.RegionBytes); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		other.Header.Put(page)
		copy(r.mem, page)
		if err := r.ReadHeader(); errors.Is(err, unix.EBADMSG) != (d != 0) {
			t.Errorf("the border %d bytes off: %v", d, err)
		}
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
		"region bytes":                 func(h *Header) { h.RegionBytes-- },
		"ring not pow2":                func(h *Header) { h.Sends = 1000 },
		"no flows":                     func(h *Header) { h.Flows = 0 },
		"ring outside":                 func(h *Header) { h.EventOff = h.RegionBytes - 64 },
		"offset wraps":                 func(h *Header) { h.RecvOff = ^uint64(63) },
		"on the header":                func(h *Header) { h.FlowOff = 64 },
		"misaligned":                   func(h *Header) { h.ReleaseOff += 8 },
		"arena outside":                func(h *Header) { h.RecvArenaBytes *= 2 },
		"arena enormous":               func(h *Header) { h.SendArenaBytes = 1 << 63 },
		"too few releases":             func(h *Header) { h.Releases = h.Receives / 2 },
		"border outside":               func(h *Header) { h.DaemonOff = h.RegionBytes + partBytes },
		"border odd":                   func(h *Header) { h.DaemonOff += 4096 },
		"border at 0":                  func(h *Header) { h.DaemonOff = 0 },
		"the daemon's with the client": func(h *Header) { h.EventOff = h.SendOff },
		"the client's with the daemon": func(h *Header) { h.SendOff = h.EventOff },
		"across the border":            func(h *Header) { h.SendArenaOff = h.DaemonOff - h.SendArenaBytes + 64 },
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

// TestRegionsHaveSmallPages: the daemon's mapping of a region asks for no huge pages, of
// which a first touch would take more than the page that is charged.
func TestRegionsHaveSmallPages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("elsewhere: this kernel has no huge pages: " + err.Error())
	}
	r := newRegion(t, Spec{Local: netip.MustParseAddrPort("10.0.0.1:4000"), SndBuf: 1 << 20, RcvBuf: 1 << 20})
	parts := []string{fmt.Sprintf("%x", uintptr(r.base)), fmt.Sprintf("%x", uintptr(r.base)+uintptr(r.DaemonOff))}
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	found, ours := 0, false
	for line := range strings.Lines(string(b)) { // a mapping's first line names its file, its last its flags
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && ours {
			found++
			if !strings.Contains(flags, " nh") {
				t.Errorf("huge pages may be used:%s", flags)
			}
		}
		if addr, _, ok := strings.Cut(line, "-"); ok && !strings.Contains(addr, " ") {
			ours = slices.Contains(parts, addr)
		}
	}
	if found != 2 {
		t.Errorf("%d mappings of the region were found, want its two parts", found)
	}
}
