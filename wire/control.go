package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Control messages between two rdsd: FlagControl is set, the ports are 0, and
// the first extension byte says which.
const (
	// CtlCongDelta tells ports of the sender that became congested or clear. Its sequence
	// is 0.
	CtlCongDelta = 0xd7
	// CtlRefuse names messages of the other direction that were received and refused. It is
	// sequenced and retransmitted like data, so that a refusal always precedes the
	// acknowledgement that covers it.
	CtlRefuse = 0xd6
	// CtlAskPorts names the congested ports of the receiver that the sender wants to hear
	// about. Its sequence is 0; it may be lost, and the receiver answers when it likes.
	CtlAskPorts = 0xd5
	// CtlTellPort is the answer to CtlAskPorts, one message for each port. Its sequence is
	// 0.
	CtlTellPort = 0xd4
)

// PortState is one entry of a CtlCongDelta: 4 bytes, port and state.
type PortState struct {
	Port      uint16
	Congested bool
}

// Reason says why a message was refused.
type Reason uint8

// Reasons for a refusal.
const (
	ReasonNoPort Reason = 1 // no socket has the destination port: final
	ReasonNoRoom Reason = 2 // the receiver is at its hard limit: send again when the port clears
)

// Refusal is one entry of a CtlRefuse: 12 bytes, sequence, reason, 3 bytes zero.
type Refusal struct {
	Seq    uint64
	Reason Reason
}

// Sizes of control payloads, and the most a receiver accepts in one message.
const (
	portStateLen  = 4
	refusalLen    = 12
	MaxPortStates = 256
	MaxRefusals   = 1024
)

// ErrControl is returned for a control payload of the wrong size or content.
var ErrControl = errors.New("wire: malformed control message")

// AppendPortStates appends the payload of a CtlCongDelta.
func AppendPortStates(b []byte, s []PortState) []byte {
	for _, p := range s {
		var st uint16
		if p.Congested {
			st = 1
		}
		b = binary.BigEndian.AppendUint16(b, p.Port)
		b = binary.BigEndian.AppendUint16(b, st)
	}
	return b
}

// ParsePortStates calls f for each entry, in order. Nothing is called when the
// payload is malformed.
func ParsePortStates(b []byte, f func(PortState)) error {
	if len(b)%portStateLen != 0 || len(b) > MaxPortStates*portStateLen {
		return ErrControl
	}
	for i := 0; i < len(b); i += portStateLen {
		if binary.BigEndian.Uint16(b[i+2:]) > 1 {
			return ErrControl
		}
	}
	for i := 0; i < len(b); i += portStateLen {
		f(PortState{binary.BigEndian.Uint16(b[i:]), b[i+3] == 1})
	}
	return nil
}

// AppendRefusal appends one entry of a CtlRefuse payload.
func AppendRefusal(b []byte, r Refusal) []byte {
	b = binary.BigEndian.AppendUint64(b, r.Seq)
	return append(b, byte(r.Reason), 0, 0, 0)
}

// Refusals is the number of entries of a CtlRefuse payload.
func Refusals(b []byte) int { return len(b) / refusalLen }

// ParseRefusals calls f for each entry, in order; f's first error ends the walk.
// Nothing is called when the payload is malformed.
func ParseRefusals(b []byte, f func(Refusal) error) error {
	if len(b) == 0 || len(b)%refusalLen != 0 || len(b) > MaxRefusals*refusalLen {
		return ErrControl
	}
	for i := 0; i < len(b); i += refusalLen {
		r := Reason(b[i+8])
		if r != ReasonNoPort && r != ReasonNoRoom || b[i+9]|b[i+10]|b[i+11] != 0 {
			return ErrControl
		}
	}
	for i := 0; i < len(b); i += refusalLen {
		if err := f(Refusal{binary.BigEndian.Uint64(b[i:]), Reason(b[i+8])}); err != nil {
			return err
		}
	}
	return nil
}

// MaxAskedPorts is how many ports one CtlAskPorts may name.
const MaxAskedPorts = 16

// AppendPorts appends the payload of a CtlAskPorts: 2 bytes for each port.
func AppendPorts(b []byte, ports []uint16) []byte {
	for _, p := range ports {
		b = binary.BigEndian.AppendUint16(b, p)
	}
	return b
}

// ParsePorts calls f for each port asked about, in order. Nothing is called when the
// payload is malformed.
func ParsePorts(b []byte, f func(port uint16)) error {
	if len(b)%2 != 0 || len(b) > 2*MaxAskedPorts {
		return ErrControl
	}
	for ; len(b) > 0; b = b[2:] {
		f(binary.BigEndian.Uint16(b))
	}
	return nil
}

// Reader is the payload of a CtlTellPort: the reader of a congested port, how much is
// queued there, and its senders, the largest first.
type Reader struct {
	Port     uint16
	UID, PID uint32
	Queued   uint64 // bytes
	Label    string // the reader's own name for its socket, at most MaxReaderLabel bytes are sent
	Fillers  []Filler
}

// Filler is a sender with datagrams in a receive queue.
type Filler struct {
	Source    netip.AddrPort
	Datagrams uint32
	Bytes     uint64
}

// Sizes and limits of a CtlTellPort.
const (
	readerLen      = 20 // before the label
	fillerLen      = 32
	MaxReaderLabel = 64
	MaxFillers     = 8
)

// AppendReader appends the payload of a CtlTellPort: port 2, fillers 1, bytes of the
// label 1, uid 4, pid 4, queued 8, the label, then for each filler address 16 (IPv4
// mapped), port 2, zero 2, datagrams 4, bytes 8.
func AppendReader(b []byte, r *Reader) []byte {
	label := r.Label[:min(len(r.Label), MaxReaderLabel)]
	fillers := r.Fillers[:min(len(r.Fillers), MaxFillers)]
	b = binary.BigEndian.AppendUint16(b, r.Port)
	b = append(b, byte(len(fillers)), byte(len(label)))
	b = binary.BigEndian.AppendUint32(b, r.UID)
	b = binary.BigEndian.AppendUint32(b, r.PID)
	b = binary.BigEndian.AppendUint64(b, r.Queued)
	b = append(b, label...)
	for _, f := range fillers {
		a := f.Source.Addr().As16()
		b = append(b, a[:]...)
		b = binary.BigEndian.AppendUint16(b, f.Source.Port())
		b = append(b, 0, 0)
		b = binary.BigEndian.AppendUint32(b, f.Datagrams)
		b = binary.BigEndian.AppendUint64(b, f.Bytes)
	}
	return b
}

// ParseReader reads the payload of a CtlTellPort.
func ParseReader(b []byte) (r Reader, err error) {
	if len(b) < readerLen {
		return r, ErrControl
	}
	fillers, label := int(b[2]), int(b[3])
	if fillers > MaxFillers || label > MaxReaderLabel || len(b) != readerLen+label+fillers*fillerLen {
		return r, ErrControl
	}
	r = Reader{Port: binary.BigEndian.Uint16(b), UID: binary.BigEndian.Uint32(b[4:]), PID: binary.BigEndian.Uint32(b[8:]),
		Queued: binary.BigEndian.Uint64(b[12:]), Label: string(b[readerLen : readerLen+label])}
	for b = b[readerLen+label:]; len(b) > 0; b = b[fillerLen:] {
		if b[18]|b[19] != 0 {
			return Reader{}, ErrControl
		}
		r.Fillers = append(r.Fillers, Filler{
			Source:    netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:])),
			Datagrams: binary.BigEndian.Uint32(b[20:]), Bytes: binary.BigEndian.Uint64(b[24:]),
		})
	}
	return r, nil
}
