package roce

import "fmt"

// Opcode says what a packet is and which headers follow its first one.
type Opcode uint8

// Opcodes of reliable connections, and the one datagram that the connection manager sends.
const (
	SendFirst Opcode = iota
	SendMiddle
	SendLast
	SendLastImm
	SendOnly
	SendOnlyImm
	WriteFirst
	WriteMiddle
	WriteLast
	WriteLastImm
	WriteOnly
	WriteOnlyImm
	ReadRequest
	ReadFirst // of the answers to a ReadRequest
	ReadMiddle
	ReadLast
	ReadOnly
	Acknowledge
	AtomicAcknowledge
	CompareSwap
	FetchAdd
	_ // 0x15 is reserved
	SendLastInval
	SendOnlyInval

	DatagramSendOnly Opcode = 0x64
)

// part is the place of a packet in its message.
type part uint8

const (
	only part = iota // the message is one packet
	first
	middle
	last
)

// kind is what a message is. Only packets of one kind make a message.
type kind uint8

const (
	kindSend kind = iota + 1
	kindWrite
	kindReadRequest
	kindReadResponse
	kindAck
	kindAtomic
	kindDatagram
)

// Headers after the first one, in the order in which they stand in a packet.
const (
	hasDETH      = 1 << iota // key and source of a datagram
	hasRETH                  // address, key and length
	hasAtomicETH             // address, key and two operands
	hasAETH                  // syndrome and message number
	hasAtomicAck             // what was there before
	hasImm                   // an immediate
	hasIETH                  // a key to be invalidated
	hasPayload
)

// Lengths of those headers.
const (
	bthLen       = 12
	dethLen      = 8
	rethLen      = 16
	atomicETHLen = 28
	aethLen      = 4
	atomicAckLen = 8
	immLen       = 4
	iethLen      = 4
	icrcLen      = 4

	// MaxHeader is the longest run of headers of a packet.
	MaxHeader = bthLen + atomicETHLen
)

type opInfo struct {
	name string
	kind kind // 0: there is no such opcode
	part part
	has  uint8
}

// opcodes says of each opcode all that the rules of packets need.
var opcodes = [256]opInfo{
	SendFirst:         {"SEND_FIRST", kindSend, first, hasPayload},
	SendMiddle:        {"SEND_MIDDLE", kindSend, middle, hasPayload},
	SendLast:          {"SEND_LAST", kindSend, last, hasPayload},
	SendLastImm:       {"SEND_LAST_IMM", kindSend, last, hasImm | hasPayload},
	SendOnly:          {"SEND_ONLY", kindSend, only, hasPayload},
	SendOnlyImm:       {"SEND_ONLY_IMM", kindSend, only, hasImm | hasPayload},
	WriteFirst:        {"WRITE_FIRST", kindWrite, first, hasRETH | hasPayload},
	WriteMiddle:       {"WRITE_MIDDLE", kindWrite, middle, hasPayload},
	WriteLast:         {"WRITE_LAST", kindWrite, last, hasPayload},
	WriteLastImm:      {"WRITE_LAST_IMM", kindWrite, last, hasImm | hasPayload},
	WriteOnly:         {"WRITE_ONLY", kindWrite, only, hasRETH | hasPayload},
	WriteOnlyImm:      {"WRITE_ONLY_IMM", kindWrite, only, hasRETH | hasImm | hasPayload},
	ReadRequest:       {"READ_REQUEST", kindReadRequest, only, hasRETH},
	ReadFirst:         {"READ_FIRST", kindReadResponse, first, hasAETH | hasPayload},
	ReadMiddle:        {"READ_MIDDLE", kindReadResponse, middle, hasPayload},
	ReadLast:          {"READ_LAST", kindReadResponse, last, hasAETH | hasPayload},
	ReadOnly:          {"READ_ONLY", kindReadResponse, only, hasAETH | hasPayload},
	Acknowledge:       {"ACK", kindAck, only, hasAETH},
	AtomicAcknowledge: {"ATOMIC_ACK", kindAck, only, hasAETH | hasAtomicAck},
	CompareSwap:       {"COMPARE_SWAP", kindAtomic, only, hasAtomicETH},
	FetchAdd:          {"FETCH_ADD", kindAtomic, only, hasAtomicETH},
	SendLastInval:     {"SEND_LAST_INV", kindSend, last, hasIETH | hasPayload},
	SendOnlyInval:     {"SEND_ONLY_INV", kindSend, only, hasIETH | hasPayload},
	DatagramSendOnly:  {"UD_SEND_ONLY", kindDatagram, only, hasDETH | hasPayload},
}

func (o Opcode) String() string {
	if name := opcodes[o].name; name != "" {
		return name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// Valid reports whether there is such an opcode here. Those of other transports are not.
func (o Opcode) Valid() bool { return opcodes[o].kind != 0 }

// Header is the length of all headers of a packet with this opcode.
func (o Opcode) Header() int { return int(headers[o]) }

var headers = func() (t [256]uint8) {
	for o := range t {
		t[o] = bthLen
		for _, h := range extensions {
			if opcodes[o].has&h.bit != 0 {
				t[o] += h.len
			}
		}
	}
	return t
}()

// extensions are the headers that may follow the first one, in their order.
var extensions = [...]struct {
	bit uint8
	len uint8
}{
	{hasDETH, dethLen}, {hasRETH, rethLen}, {hasAtomicETH, atomicETHLen}, {hasAETH, aethLen},
	{hasAtomicAck, atomicAckLen}, {hasImm, immLen}, {hasIETH, iethLen},
}

// Starts reports whether a message begins with o, and Ends whether one ends with it.
func (o Opcode) Starts() bool { return opcodes[o].part == only || opcodes[o].part == first }

// Ends reports whether a message ends with o.
func (o Opcode) Ends() bool { return opcodes[o].part == only || opcodes[o].part == last }

// Follows reports whether o may come right after prev in one direction of one queue pair: a
// message that is begun is ended before anything else begins. Acknowledgements and answers
// to READs are a stream apart from requests, and each is compared with its own.
func (o Opcode) Follows(prev Opcode) bool {
	if prev.Ends() {
		return o.Starts()
	}
	return !o.Starts() && opcodes[o].kind == opcodes[prev].kind
}
