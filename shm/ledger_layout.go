package shm

import (
	"fmt"
	"hash/crc32"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LedgerVersion is the version of the ledger's layout.
const LedgerVersion = 1

// Sizes in the ledger, bytes.
const (
	laneBytes   = 512
	recordBytes = 128 // region table entry
	commitHead  = 64
	commitEach  = 16

	// MaxRefusals is how many refusals a lane's entry holds.
	MaxRefusals = 53
	// RefusalsOverflow instead of their number: more than fit.
	RefusalsOverflow = 0xffffffff
	// CellLane is where the lane stands in the word of a datagram that was sent.
	CellLane = 56
	// LocalLane is the lane number of datagrams that stay at their address.
	LocalLane = 127

	accountBit = 1 << 63 // in the event tail of a region entry
)

// LedgerHeader is the first page of a ledger.
type LedgerHeader struct {
	FileBytes                      uint64
	Instance                       uint64
	Lanes, Regions, Sends, Commits uint32 // entries; Sends for each region
	CommitOff, LaneOff             uint64
	RegionOff, SendOff             uint64
	Boot                           [16]byte // the machine's boot id
}

var ledgerMagic = [8]byte{'R', 'D', 'S', 'D', 'L', 'D', 'G', '1'}

// commitBytes is the size of a commit record.
func commitBytes(regions uint32) uint64 {
	return (commitHead + commitEach*uint64(regions) + UnitBytes - 1) &^ (UnitBytes - 1)
}

// lay computes offsets and size from the numbers of entries.
func (h *LedgerHeader) lay() {
	at := uint64(HeaderBytes)
	put := func(off *uint64, bytes uint64) {
		*off = at
		at = (at + bytes + 4095) &^ 4095
	}
	put(&h.CommitOff, uint64(h.Commits)*commitBytes(h.Regions))
	put(&h.LaneOff, uint64(h.Lanes)*laneBytes)
	put(&h.RegionOff, uint64(h.Regions)*recordBytes)
	put(&h.SendOff, uint64(h.Regions)*uint64(h.Sends)*entryBytes)
	h.FileBytes = at
}

// Put writes the header page into b, which has HeaderBytes.
func (h *LedgerHeader) Put(b []byte) {
	clear(b[:HeaderBytes])
	copy(b, ledgerMagic[:])
	le.PutUint32(b[8:], LedgerVersion)
	le.PutUint32(b[12:], HeaderBytes)
	le.PutUint64(b[16:], h.FileBytes)
	le.PutUint64(b[24:], h.Instance)
	for i, v := range []uint32{h.Lanes, h.Regions, h.Sends, h.Commits} {
		le.PutUint32(b[32+4*i:], v)
	}
	for i, v := range []uint64{h.CommitOff, h.LaneOff, h.RegionOff, h.SendOff} {
		le.PutUint64(b[48+8*i:], v)
	}
	copy(b[80:], h.Boot[:])
	le.PutUint32(b[HeaderBytes-4:], crc32.Checksum(b[:HeaderBytes-4], castagnoli))
}

// Parse reads and checks the header page of a ledger of size bytes.
func (h *LedgerHeader) Parse(b []byte, size uint64) error {
	if len(b) < HeaderBytes || [8]byte(b[:8]) != ledgerMagic {
		return badMsg("no ledger: it does not begin with %q", ledgerMagic[:])
	}
	if v := le.Uint32(b[8:]); v != LedgerVersion {
		return &Error{unix.EPROTONOSUPPORT, fmt.Sprintf("the ledger has version %d; this program knows %d", v, LedgerVersion)}
	}
	if n := le.Uint32(b[12:]); n != HeaderBytes {
		return badMsg("a ledger header of %d bytes, not %d", n, HeaderBytes)
	}
	if got, want := le.Uint32(b[HeaderBytes-4:]), crc32.Checksum(b[:HeaderBytes-4], castagnoli); got != want {
		return badMsg("the ledger header's checksum is %#x, computed %#x", got, want)
	}
	h.FileBytes, h.Instance = le.Uint64(b[16:]), le.Uint64(b[24:])
	for i, p := range []*uint32{&h.Lanes, &h.Regions, &h.Sends, &h.Commits} {
		*p = le.Uint32(b[32+4*i:])
	}
	for i, p := range []*uint64{&h.CommitOff, &h.LaneOff, &h.RegionOff, &h.SendOff} {
		*p = le.Uint64(b[48+8*i:])
	}
	copy(h.Boot[:], b[80:96])
	// A file that was cut off, or that another process has made longer, is no ledger of
	// ours.
	if h.FileBytes != size {
		return badMsg("the ledger's header speaks of %d bytes, the file has %d", h.FileBytes, size)
	}
	for _, p := range []struct {
		what         string
		off, n, each uint64
	}{
		{"commit records", h.CommitOff, uint64(h.Commits), commitBytes(h.Regions)},
		{"lane table", h.LaneOff, uint64(h.Lanes), laneBytes},
		{"region table", h.RegionOff, uint64(h.Regions), recordBytes},
		{"send tables", h.SendOff, uint64(h.Regions), uint64(h.Sends) * entryBytes},
	} {
		// The product is taken in 128 bits: a length that wraps around would pass for a small
		// one.
		over, bytes := bits.Mul64(p.n, p.each)
		if over != 0 || p.off%UnitBytes != 0 || p.off < HeaderBytes || p.off > size || bytes > size-p.off {
			return badMsg("the ledger's %s (%d of %d bytes at %d) do not fit into %d bytes", p.what, p.n, p.each, p.off, size)
		}
	}
	return nil
}

// LaneRecord is an entry of the lane table.
type LaneRecord struct {
	Lane            uint32
	Local, Remote   netip.Addr
	Kind            uint8 // conn.Kind
	Incarnation     uint64
	PeerIncarnation uint64
	NextSeq         uint64
	Received        uint64
	Refusals        []uint64 // up to Received
	MoreRefusals    bool     // there are others, which did not fit
}

// get reads an entry; ok is false when it is not in use or makes no sense.
func (l *LaneRecord) get(b []byte) (ok bool) {
	if le.Uint32(b) != 1 {
		return false
	}
	l.Lane = le.Uint32(b[4:])
	var lo, re bool
	l.Local, lo = getAddr(b[8:24], b[40])
	l.Remote, re = getAddr(b[24:40], b[40])
	l.Kind = b[41]
	l.Incarnation, l.PeerIncarnation = le.Uint64(b[48:]), le.Uint64(b[56:])
	l.NextSeq, l.Received = le.Uint64(b[64:]), le.Uint64(b[72:])
	n := le.Uint32(b[80:])
	l.Refusals, l.MoreRefusals = nil, n > MaxRefusals
	if !l.MoreRefusals {
		for i := range n {
			if s := le.Uint64(b[88+8*i:]); s <= l.Received {
				l.Refusals = append(l.Refusals, s)
			}
		}
	}
	return lo && re
}

// RegionRecord is an entry of the region table.
type RegionRecord struct {
	ID       [16]byte
	Inode    uint64
	Bytes    uint64
	Local    netip.AddrPort
	UID, PID uint32
	SendHead uint64 // descriptors taken
	Events   uint64 // published
	Account  uint8  // of Finished, that belongs to Events
	RecvTail uint64 // descriptors published
	Taken    [2]uint64
	Finished [2]uint64
}

func (r *RegionRecord) get(b []byte) (ok bool) {
	if le.Uint32(b) != 1 {
		return false
	}
	copy(r.ID[:], b[8:24])
	r.Inode, r.Bytes = le.Uint64(b[24:]), le.Uint64(b[32:])
	a, ok := getAddr(b[40:56], b[58])
	r.Local = netip.AddrPortFrom(a, le.Uint16(b[56:]))
	r.UID, r.PID = le.Uint32(b[60:]), le.Uint32(b[64:])
	r.SendHead, r.RecvTail = le.Uint64(b[72:]), le.Uint64(b[88:])
	e := le.Uint64(b[80:])
	r.Events, r.Account = e&^accountBit, uint8(e>>63)
	for i := range 2 {
		r.Taken[i], r.Finished[i] = le.Uint64(b[96+8*i:]), le.Uint64(b[112+8*i:])
	}
	return ok
}

// put writes the fields that do not change while the region exists, in use last.
func (r *RegionRecord) put(b []byte) {
	clear(b[:recordBytes])
	copy(b[8:], r.ID[:])
	le.PutUint64(b[24:], r.Inode)
	le.PutUint64(b[32:], r.Bytes)
	b[58] = putAddr(b[40:56], r.Local.Addr())
	le.PutUint16(b[56:], r.Local.Port())
	le.PutUint32(b[60:], r.UID)
	le.PutUint32(b[64:], r.PID)
	word32(b).Store(1)
}

// Bits of SendRecord.Progress.
const (
	progressBits  = 13
	progressMask  = 1<<progressBits - 1
	progressUnder = 1 << 30 // a publication is under way
	progressAcct  = 31      // shift: its account
)

// FlagRefusing in SendRecord.Flags: its refusal was not published yet.
const FlagRefusing = 0x80

// SendRecord is an entry of a send table: a descriptor taken and not finished.
type SendRecord struct {
	Cell     uint64 // lane<<56 | sequence; 0 not sent; bit 63: sent one by one
	Order    uint64 // 1 + number of the descriptor
	Slot     uint64 // bytes from the start of the send arena
	Progress uint32
	Word     Word
	Tag      uint64
	Cookie   uint32
	Dst      Target
	Flags    uint8
}

// Target is a destination as the entries of a send table hold it: it is made once for each
// flow. The zero Target is none.
type Target struct{ lo, hi, port uint64 }

// MakeTarget is dst as a Target.
func MakeTarget(dst netip.AddrPort) (t Target) {
	if dst.IsValid() {
		var family uint8
		t.lo, t.hi, family = addrWords(dst.Addr())
		t.port = uint64(dst.Port()) | uint64(family)<<16
	}
	return t
}

// AddrPort is the destination; not valid when there is none.
func (t Target) AddrPort() netip.AddrPort {
	a, _ := wordsAddr(t.lo, t.hi, uint8(t.port>>16))
	return netip.AddrPortFrom(a, uint16(t.port))
}

// put fills an entry, the order last.
func (s *SendRecord) put(e *entry) {
	e[0] = s.Cell
	e[2] = s.Slot/UnitBytes&0xffffffff | uint64(s.Progress)<<32
	e[3] = uint64(s.Word)
	e[4] = s.Tag
	e[5] = uint64(s.Cookie) | s.Dst.port<<32 | uint64(s.Flags)<<56
	e[6], e[7] = s.Dst.lo, s.Dst.hi
	atomic.StoreUint64(&e[1], s.Order)
}

func (s *SendRecord) get(e *entry) (ok bool) {
	s.Cell, s.Order = e[0], e[1]
	s.Slot, s.Progress = e[2]&0xffffffff*UnitBytes, uint32(e[2]>>32)
	s.Word, s.Tag = Word(e[3]), e[4]
	s.Cookie, s.Dst, s.Flags = uint32(e[5]), Target{e[6], e[7], e[5] >> 32 & (1<<24 - 1)}, uint8(e[5]>>56)
	return s.Order != 0
}

// Finished is how many of the datagrams have a published outcome, when the
// region's event tail says account.
func (s *SendRecord) Finished(account uint8) int {
	if s.Progress&progressUnder != 0 && uint8(s.Progress>>progressAcct) == account {
		return int(s.Progress >> progressBits & progressMask)
	}
	return int(s.Progress & progressMask)
}

func word32(b []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[0])) }
func word64(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }
