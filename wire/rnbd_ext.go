package wire

import "encoding/binary"

// What an rdsd adds to RNBD, in bytes that a kernel sends as zero and ignores.
// A client shows in SESS_INFO that it knows the additions; a server answers
// with its own, and uses them, only then. So a kernel on either side sees its
// own protocol.

// RNBDFeatures are the additions a side knows.
type RNBDFeatures uint8

// Additions.
const (
	// RNBDFeatInfo: the server answers INFO, and tells of the store in OPEN_RSP.
	RNBDFeatInfo RNBDFeatures = 1 << iota
	// RNBDFeatFlags: the client says PREFLUSH where it means it. The FUA of a
	// client that does not may have been a PREFLUSH.
	RNBDFeatFlags
)

// RNBDInfoType is a request for what OPEN_RSP says, now, of an open device: 8
// bytes like a CLOSE, carried by a READ of RNBDOpenRspLen bytes.
const RNBDInfoType RNBDType = 0x8001

// RNBDInfoLen is the length of an INFO in bytes.
const RNBDInfoLen = 8

const (
	rnbdMarkAt  = 5 // in SESS_INFO and its answer: mark (4 bytes), features (1)
	rnbdMark    = "rdsd"
	rnbdStoreAt = 46 // in OPEN_RSP: flags (1), 0 (1), verifier (8)
)

// AppendRNBDSessInfoExt is AppendRNBDSessInfo with the additions of the sender.
func AppendRNBDSessInfoExt(b []byte, t RNBDType, ver uint8, f RNBDFeatures) []byte {
	at := len(b)
	b = AppendRNBDSessInfo(b, t, ver)
	copy(b[at+rnbdMarkAt:], rnbdMark)
	b[at+rnbdMarkAt+len(rnbdMark)] = byte(f)
	return b
}

// ParseRNBDFeatures reads the additions from a SESS_INFO or its answer that
// has been parsed; none when the sender is a kernel.
func ParseRNBDFeatures(b []byte) RNBDFeatures {
	if len(b) < RNBDSessInfoLen || string(b[rnbdMarkAt:rnbdMarkAt+len(rnbdMark)]) != rnbdMark {
		return 0
	}
	return RNBDFeatures(b[rnbdMarkAt+len(rnbdMark)])
}

// RNBDStore is what an rdsd tells a client of the store behind a device, so that
// a client that comes back can judge what it finds.
type RNBDStore struct {
	// Verifier changes when completed writes that were not flushed may have
	// been lost: the machine was started again, a sync failed.
	Verifier uint64
	// Volatile: when Verifier has changed, everything is lost.
	Volatile bool
	// Foreign: since the session of this name had the device, another one has
	// had it for writing.
	Foreign bool
}

const (
	rnbdStoreVolatile = 1 << 0
	rnbdStoreForeign  = 1 << 1
)

// Put writes s into the OPEN_RSP in b, over bytes that are reserved for kernels.
func (s RNBDStore) Put(b []byte) {
	_ = b[RNBDOpenRspLen-1]
	var flags byte
	if s.Volatile {
		flags |= rnbdStoreVolatile
	}
	if s.Foreign {
		flags |= rnbdStoreForeign
	}
	b[rnbdStoreAt], b[rnbdStoreAt+1] = flags, 0
	binary.LittleEndian.PutUint64(b[rnbdStoreAt+2:], s.Verifier)
}

// ParseRNBDStore reads it from an OPEN_RSP that has been parsed and came from a
// server with RNBDFeatInfo.
func ParseRNBDStore(b []byte) RNBDStore {
	_ = b[RNBDOpenRspLen-1]
	flags := b[rnbdStoreAt]
	return RNBDStore{binary.LittleEndian.Uint64(b[rnbdStoreAt+2:]), flags&rnbdStoreVolatile != 0, flags&rnbdStoreForeign != 0}
}

// AppendRNBDInfo appends the 8 bytes of an INFO.
func AppendRNBDInfo(b []byte, deviceID uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendRNBDHdr(b, RNBDInfoType), deviceID)
}

// ParseRNBDInfo reads the device of an INFO.
func ParseRNBDInfo(b []byte) (deviceID uint32, err error) {
	if err := rnbdExpect(b, RNBDInfoType, RNBDInfoLen); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[4:]), nil
}
