package cm

import (
	"encoding/binary"
	"fmt"

	"github.com/rdsd/rdsd/roce"
)

// MADLen is the length in bytes of every message: a management datagram (InfiniBand, 13.4.3).
const MADLen = 256

// headerLen is the length in bytes of what every message begins with; offsets in the comments
// of messages count from behind it.
const headerLen = 24

// attr says which message of the connection manager a datagram is (InfiniBand, 12.6).
type attr uint16

// The messages.
const (
	attrREQ  attr = 0x10 // asks for a connection
	attrMRA  attr = 0x11 // have patience: the answer takes longer than announced
	attrREJ  attr = 0x12 // refuses, or gives up
	attrREP  attr = 0x13 // accepts
	attrRTU  attr = 0x14 // ready to use: the answer has come
	attrDREQ attr = 0x15 // asks for the end
	attrDREP attr = 0x16 // confirms it
)

var attrNames = map[attr]string{
	attrREQ: "REQ", attrMRA: "MRA", attrREJ: "REJ", attrREP: "REP", attrRTU: "RTU", attrDREQ: "DREQ", attrDREP: "DREP",
}

func (a attr) String() string {
	if s := attrNames[a]; s != "" {
		return s
	}
	return fmt.Sprintf("attribute %#x", uint16(a))
}

// The first bytes of a datagram: base version 1, the class of communication management in its
// version 2, and the method Send. They are the same in all messages.
const madStart = 0x01_07_02_03

// start makes mad a message with nothing in it but its header, and returns what follows that.
// The transaction ID is drawn by whoever begins an exchange; answers repeat it.
func start(mad *[MADLen]byte, a attr, tid uint64) []byte {
	*mad = [MADLen]byte{}
	be := binary.BigEndian
	be.PutUint32(mad[0:], madStart)
	be.PutUint64(mad[8:], tid)
	be.PutUint16(mad[16:], uint16(a))
	return mad[headerLen:]
}

// open takes the header off a datagram. It reports whether it is a message of a connection
// manager; the status is not looked at, as only answers to other methods have one.
func open(mad []byte) (a attr, tid uint64, body []byte, ok bool) {
	be := binary.BigEndian
	if len(mad) != MADLen || be.Uint32(mad) != madStart {
		return 0, 0, nil, false
	}
	return attr(be.Uint16(mad[16:])), be.Uint64(mad[8:]), mad[headerLen:], true
}

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

// set is bit if on is true.
func set(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// The message that a REJ or an MRA is about, in the two bits that say so.
const (
	aboutREQ  = 0
	aboutREP  = 1
	aboutNone = 2
)

// Places of the fields that several messages begin with. A message is sent with its sender's
// ID first.
const (
	atLocalID  = 0 // the sender's
	atRemoteID = 4 // the receiver's
)

// ids are those of the sender and of the receiver of a message.
func ids(body []byte) (local, remote uint32) {
	be := binary.BigEndian
	return be.Uint32(body[atLocalID:]), be.Uint32(body[atRemoteID:])
}

func putIDs(body []byte, local, remote uint32) {
	be := binary.BigEndian
	be.PutUint32(body[atLocalID:], local)
	be.PutUint32(body[atRemoteID:], remote)
}

// rep accepts a connection (InfiniBand, 12.6.8).
type rep struct {
	local, remote uint32
	qpn           uint32 // 12, 24 bits
	recvPSN       roce.PSN
	readsIn       uint8 // 24: responder resources
	reads         uint8 // 25: initiator depth
	ackDelay      uint8 // 26, bits 7-3: code of the time within which its device acknowledges
	flowControl   bool  // 26, bit 0: end to end
	rnrRetry      uint8 // 27, bits 7-5
	srq           bool  // 27, bit 4
	guid          uint64
	private       []byte // 36
}

const repPrivate = 36

func (p *rep) put(mad *[MADLen]byte, tid uint64) {
	b := start(mad, attrREP, tid)
	putIDs(b, p.local, p.remote)
	put24(b[12:], p.qpn)
	put24(b[20:], uint32(p.recvPSN))
	b[24], b[25] = p.readsIn, p.reads
	b[26] = p.ackDelay<<3 | set(p.flowControl, 1)
	b[27] = p.rnrRetry<<5 | set(p.srq, 1<<4)
	binary.BigEndian.PutUint64(b[28:], p.guid)
	copy(b[repPrivate:], p.private)
}

// parse reads a REP's body, to which p.private refers.
func (p *rep) parse(b []byte) {
	*p = rep{
		qpn: get24(b[12:]), recvPSN: roce.PSN(get24(b[20:])), readsIn: b[24], reads: b[25],
		ackDelay: b[26] >> 3, flowControl: b[26]&1 != 0, rnrRetry: b[27] >> 5, srq: b[27]&(1<<4) != 0,
		guid: binary.BigEndian.Uint64(b[28:]), private: b[repPrivate:],
	}
	p.local, p.remote = ids(b)
}

// rej refuses a connection, or says that its sender gives up (InfiniBand, 12.6.7).
type rej struct {
	local, remote uint32
	about         uint8 // 8, bits 7-6
	reason        Reason
	info          []byte // 12: up to 72 bytes whose meaning the reason decides; byte 9, bits 7-1, has their number
	private       []byte // 84
}

const (
	rejInfo    = 12
	rejPrivate = 84
)

func (p *rej) put(mad *[MADLen]byte, tid uint64) {
	b := start(mad, attrREJ, tid)
	putIDs(b, p.local, p.remote)
	b[8] = p.about << 6
	b[9] = byte(copy(b[rejInfo:rejPrivate], p.info)) << 1
	binary.BigEndian.PutUint16(b[10:], uint16(p.reason))
	copy(b[rejPrivate:], p.private)
}

// parse reads a REJ's body, to which p.info and p.private refer.
func (p *rej) parse(b []byte) {
	*p = rej{about: b[8] >> 6, reason: Reason(binary.BigEndian.Uint16(b[10:])), private: b[rejPrivate:]}
	// The length has seven bits, of which 72 is the most that there is room for.
	p.info = b[rejInfo:][:min(int(b[9]>>1), rejPrivate-rejInfo)]
	p.local, p.remote = ids(b)
}

// mra says that the answer to a message takes longer (InfiniBand, 12.6.6). Its private data
// is not used here.
type mra struct {
	local, remote uint32
	about         uint8 // 8, bits 7-6
	service       uint8 // 9, bits 7-3: code of how long it may take
}

func (p *mra) put(mad *[MADLen]byte, tid uint64) {
	b := start(mad, attrMRA, tid)
	putIDs(b, p.local, p.remote)
	b[8], b[9] = p.about<<6, p.service<<3
}

func (p *mra) parse(b []byte) {
	*p = mra{about: b[8] >> 6, service: b[9] >> 3}
	p.local, p.remote = ids(b)
}

// rtu says that a REP has come (InfiniBand, 12.6.9), and drep confirms a DREQ (12.6.11): they
// have nothing but IDs, and private data that is not used here.
type rtu struct{ local, remote uint32 }

func (p *rtu) put(mad *[MADLen]byte, tid uint64) {
	putIDs(start(mad, attrRTU, tid), p.local, p.remote)
}

func (p *rtu) parse(b []byte) { p.local, p.remote = ids(b) }

type drep struct{ local, remote uint32 }

func (p *drep) put(mad *[MADLen]byte, tid uint64) {
	putIDs(start(mad, attrDREP, tid), p.local, p.remote)
}

func (p *drep) parse(b []byte) { p.local, p.remote = ids(b) }

// dreq asks for the end of a connection (InfiniBand, 12.6.10). Its private data is not used
// here.
type dreq struct {
	local, remote uint32
	qpn           uint32 // 8, 24 bits: of the receiver
}

func (p *dreq) put(mad *[MADLen]byte, tid uint64) {
	b := start(mad, attrDREQ, tid)
	putIDs(b, p.local, p.remote)
	put24(b[8:], p.qpn)
}

func (p *dreq) parse(b []byte) {
	p.qpn = get24(b[8:])
	p.local, p.remote = ids(b)
}
