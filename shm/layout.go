package shm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// Version is the version of the layout (docs/shm.md).
const Version = 3

// Sizes, in bytes unless they say otherwise.
const (
	HeaderBytes   = 4096
	wordsBytes    = 4096
	partBytes     = 64 << 10 // both parts are multiples of it, whatever a page is
	entryBytes    = 64       // flow, descriptor, event
	UnitBytes     = 64       // slots are multiples of it
	MaxDatagram   = 1 << 20
	MaxTrainBytes = wire.MaxTrainBytes // body of a descriptor with several datagrams
	MaxTrain      = wire.MaxTrain      // datagrams
)

// Entries of a region's tables if Spec does not say otherwise.
const (
	DefaultFlows    = 1024
	DefaultSends    = 1024
	DefaultEvents   = 2048
	DefaultReceives = 4096
	DefaultReleases = 8192
)

// The most that one client may have unfinished (docs/shm.md, "Sending").
const (
	MaxOutstanding          = 16384   // descriptors taken without their last event
	MaxOutstandingDatagrams = 1 << 18 // datagrams in them
)

// Offsets of the words, one in 128 bytes.
const (
	offSendTail = 4096 + 128*iota
	offSendHead
	offEventTail
	offEventHead
	offRecvTail
	offRecvHead
	offReleaseTail
	offReleaseHead
	offDaemonSleeps
	offClientSleeps
	offClosed
	offClientSingle
	offSendsRefused
	offSendsWaited
	offSendsFull
	offRoomWanted
	offNudges
)

// Bits of the sleep words: the events that the sleeper waits for.
const (
	DaemonWaitsSend = 1 // send descriptors
	DaemonWaitsRoom = 2 // released slots, events read

	ClientWaitsRecv     = 1 // receive descriptors
	ClientWaitsEvent    = 2 // events
	ClientWaitsSendRoom = 4 // send head
	ClientWaitsFlow     = 8 // flow states
)

// TakesMixed in Header.Takes: send descriptors of KindMixed.
const TakesMixed = 1

// Header is the first page of a region.
type Header struct {
	RegionBytes uint64
	ID          [16]byte
	Instance    uint64 // of the daemon
	Local       netip.AddrPort
	UID, PID    uint32
	MaxDatagram uint32
	SndBuf      uint64
	RcvBuf      uint64

	// Entries.
	Flows, Sends, Events, Receives, Releases uint32
	// What of the client the daemon takes: TakesMixed. Daemons that know of nothing write 0.
	Takes uint32
	// Offsets in the region.
	FlowOff, FlowStateOff, SendOff, EventOff, RecvOff, ReleaseOff uint64
	// Arenas, sizes a power of two.
	SendArenaOff, SendArenaBytes, RecvArenaOff, RecvArenaBytes uint64
	// Where the daemon's part begins, which the client can only read.
	DaemonOff uint64
}

var (
	regionMagic = [8]byte{'R', 'D', 'S', 'D', 'S', 'H', 'M', '1'}
	le          = binary.LittleEndian
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Put writes the header page into b, which has HeaderBytes.
func (h *Header) Put(b []byte) {
	clear(b[:HeaderBytes])
	copy(b, regionMagic[:])
	le.PutUint32(b[8:], Version)
	le.PutUint32(b[12:], HeaderBytes)
	le.PutUint64(b[16:], h.RegionBytes)
	copy(b[24:], h.ID[:])
	le.PutUint64(b[40:], h.Instance)
	b[66] = putAddr(b[48:64], h.Local.Addr())
	le.PutUint16(b[64:], h.Local.Port())
	for i, v := range []uint32{h.UID, h.PID, h.MaxDatagram} {
		le.PutUint32(b[68+4*i:], v)
	}
	le.PutUint64(b[80:], h.SndBuf)
	le.PutUint64(b[88:], h.RcvBuf)
	for i, v := range []uint32{h.Flows, h.Sends, h.Events, h.Receives, h.Releases, h.Takes} {
		le.PutUint32(b[96+4*i:], v)
	}
	for i, v := range []uint64{h.FlowOff, h.FlowStateOff, h.SendOff, h.EventOff, h.RecvOff, h.ReleaseOff,
		h.SendArenaOff, h.SendArenaBytes, h.RecvArenaOff, h.RecvArenaBytes, h.DaemonOff} {
		le.PutUint64(b[120+8*i:], v)
	}
	le.PutUint32(b[HeaderBytes-4:], crc32.Checksum(b[:HeaderBytes-4], castagnoli))
}

// Parse reads and checks the header page of a mapping of mapped bytes. b has
// HeaderBytes and is read once: give it a copy of memory that others write.
func (h *Header) Parse(b []byte, mapped uint64) error {
	if [8]byte(b[:8]) != regionMagic {
		return badMsg("no region: it begins with %q, not with %q", b[:8], regionMagic[:])
	}
	if v := le.Uint32(b[8:]); v != Version {
		return &Error{unix.EPROTONOSUPPORT, fmt.Sprintf("the region has layout version %d; this program knows %d", v, Version)}
	}
	if n := le.Uint32(b[12:]); n != HeaderBytes {
		return badMsg("a header of %d bytes, not %d", n, HeaderBytes)
	}
	// The checksum comes before any field: a torn header is told apart from a wrong one.
	if got, want := le.Uint32(b[HeaderBytes-4:]), crc32.Checksum(b[:HeaderBytes-4], castagnoli); got != want {
		return badMsg("the header's checksum is %#x, computed %#x", got, want)
	}
	h.RegionBytes = le.Uint64(b[16:])
	copy(h.ID[:], b[24:])
	h.Instance = le.Uint64(b[40:])
	addr, ok := getAddr(b[48:64], b[66])
	if !ok {
		return badMsg("address family %d, neither 4 nor 6", b[66])
	}
	h.Local = netip.AddrPortFrom(addr, le.Uint16(b[64:]))
	for i, p := range []*uint32{&h.UID, &h.PID, &h.MaxDatagram} {
		*p = le.Uint32(b[68+4*i:])
	}
	h.SndBuf, h.RcvBuf = le.Uint64(b[80:]), le.Uint64(b[88:])
	for i, p := range []*uint32{&h.Flows, &h.Sends, &h.Events, &h.Receives, &h.Releases, &h.Takes} {
		*p = le.Uint32(b[96+4*i:])
	}
	for i, p := range []*uint64{&h.FlowOff, &h.FlowStateOff, &h.SendOff, &h.EventOff, &h.RecvOff, &h.ReleaseOff,
		&h.SendArenaOff, &h.SendArenaBytes, &h.RecvArenaOff, &h.RecvArenaBytes, &h.DaemonOff} {
		*p = le.Uint64(b[120+8*i:])
	}
	// The fields are the other side's until check has found that every table lies inside the
	// mapping.
	return h.check(mapped)
}

// check tests that everything lies inside the mapping.
func (h *Header) check(mapped uint64) error {
	if h.RegionBytes != mapped {
		return badMsg("the header speaks of %d bytes, %d are mapped", h.RegionBytes, mapped)
	}
	if h.DaemonOff%partBytes != 0 || h.DaemonOff < HeaderBytes+wordsBytes || h.DaemonOff > mapped {
		return badMsg("the daemon's part begins at %d of %d", h.DaemonOff, mapped)
	}
	type part uint8
	const (
		ofClient part = iota
		ofDaemon
	)
	// Each table lies wholly in the part of its writer: the client has the daemon's part
	// mapped to read alone, and could not write a table of its own there.
	for _, p := range []struct {
		what         string
		off, n, each uint64
		whose        part
	}{
		{"flow table", h.FlowOff, uint64(h.Flows), entryBytes, ofClient},
		{"flow states", h.FlowStateOff, uint64(h.Flows), 8, ofDaemon},
		{"send ring", h.SendOff, uint64(h.Sends), entryBytes, ofClient},
		{"event ring", h.EventOff, uint64(h.Events), entryBytes, ofDaemon},
		{"receive ring", h.RecvOff, uint64(h.Receives), entryBytes, ofDaemon},
		{"release ring", h.ReleaseOff, uint64(h.Releases), 8, ofClient},
		{"send arena", h.SendArenaOff, h.SendArenaBytes, 1, ofClient},
		{"receive arena", h.RecvArenaOff, h.RecvArenaBytes, 1, ofDaemon},
	} {
		from, to := uint64(HeaderBytes+wordsBytes), h.DaemonOff
		if p.whose == ofDaemon {
			from, to = h.DaemonOff, mapped
		}
		switch {
		// Powers of two, because positions are masked; and bounds small enough that no
		// product below overflows.
		case p.n == 0 || p.n&(p.n-1) != 0 || p.n*p.each < UnitBytes || p.n > 1<<40:
			return badMsg("%s of %d, which is no power of two in range", p.what, p.n)
		case p.off%UnitBytes != 0 || p.off < from:
			return badMsg("%s at %d, which is not a multiple of %d from %d on", p.what, p.off, UnitBytes, from)
		case p.off > to || p.n*p.each > to-p.off:
			return badMsg("%s: %d bytes at %d do not fit before %d", p.what, p.n*p.each, p.off, to)
		}
	}
	// A client that reads a whole ring must be able to release it without waiting.
	if h.Releases < h.Receives {
		return badMsg("a release ring of %d entries, less than the receive ring's %d", h.Releases, h.Receives)
	}
	return nil
}

// putAddr writes an address, into memory that is clear, as all entries hold it and returns
// the family.
func putAddr(b []byte, a netip.Addr) uint8 {
	if a.Is4() {
		v := a.As4()
		copy(b, v[:])
		return 4
	}
	v := a.As16()
	copy(b, v[:])
	return 6
}

func getAddr(b []byte, family uint8) (netip.Addr, bool) {
	switch family {
	case 4:
		return netip.AddrFrom4([4]byte(b[:4])), true
	case 6:
		return netip.AddrFrom16([16]byte(b[:16])), true
	}
	return netip.Addr{}, false
}
