package rnbd

import "encoding/binary"

// The additions of rdsd to RNBD, in bytes that a kernel sends as zero and ignores. A client
// shows in SESS_INFO that it knows the additions; a server answers with its own, and uses
// them, only then. So a kernel on either side sees its own protocol.

// Features are the additions a side knows.
type Features uint8

// Additions.
const (
	// FeatInfo says that the server answers INFO, and describes the store in OPEN_RSP.
	FeatInfo Features = 1 << iota
	// FeatFlags says that the client sends PREFLUSH where it means PREFLUSH. A client
	// without it may send FUA instead.
	FeatFlags
)

// InfoType is a request for the present OPEN_RSP of an open device: 8 bytes like a CLOSE,
// carried by a READ of OpenRspLen bytes.
const InfoType Type = 0x8001

// InfoLen is the length of an INFO in bytes.
const InfoLen = 8

const (
	markAt  = 5 // in SESS_INFO and its answer: mark (4 bytes), features (1)
	mark    = "rdsd"
	storeAt = 46 // in OPEN_RSP: flags (1), 0 (1), verifier (8)
)

// AppendSessInfoExt is AppendSessInfo with the additions of the sender.
func AppendSessInfoExt(b []byte, t Type, ver uint8, f Features) []byte {
	at := len(b)
	b = AppendSessInfo(b, t, ver)
	copy(b[at+markAt:], mark)
	b[at+markAt+len(mark)] = byte(f)
	return b
}

// ParseFeatures reads the additions from a SESS_INFO or its answer that
// has been parsed; none when the sender is a kernel.
func ParseFeatures(b []byte) Features {
	if len(b) < SessInfoLen || string(b[markAt:markAt+len(mark)]) != mark {
		return 0
	}
	return Features(b[markAt+len(mark)])
}

// Store describes the store behind a device, so that a client that comes back can judge
// whether it is the same.
type Store struct {
	// Verifier changes when completed writes that were not flushed may have
	// been lost: the machine was started again, a sync failed.
	Verifier uint64
	// Volatile says that a change of Verifier means the loss of everything the store held.
	Volatile bool
	// Foreign says that another session has had the device for writing since the session of
	// this name had it for that, or that the name led this one to another store before.
	Foreign bool
}

const (
	storeVolatile = 1 << 0
	storeForeign  = 1 << 1
)

// Put writes s into the OPEN_RSP in b, over bytes that are reserved for kernels.
func (s Store) Put(b []byte) {
	_ = b[OpenRspLen-1]
	var flags byte
	if s.Volatile {
		flags |= storeVolatile
	}
	if s.Foreign {
		flags |= storeForeign
	}
	b[storeAt], b[storeAt+1] = flags, 0
	binary.LittleEndian.PutUint64(b[storeAt+2:], s.Verifier)
}

// ParseStore reads it from an OPEN_RSP that has been parsed and came from a
// server with FeatInfo.
func ParseStore(b []byte) Store {
	_ = b[OpenRspLen-1]
	flags := b[storeAt]
	return Store{binary.LittleEndian.Uint64(b[storeAt+2:]), flags&storeVolatile != 0, flags&storeForeign != 0}
}

// AppendInfo appends the 8 bytes of an INFO.
func AppendInfo(b []byte, deviceID uint32) []byte {
	return binary.LittleEndian.AppendUint32(appendHdr(b, InfoType), deviceID)
}

// ParseInfo reads the device of an INFO.
func ParseInfo(b []byte) (deviceID uint32, err error) {
	if err := expect(b, InfoType, InfoLen); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[4:]), nil
}
