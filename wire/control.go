package wire

import (
	"encoding/binary"
	"errors"
)

// Control messages between two rdsd: FlagControl is set, the ports are 0, and
// the first extension byte says which.
const (
	// CtlCongDelta: ports of the sender that became congested or clear. Sequence 0.
	CtlCongDelta = 0xd7
	// CtlRefuse: messages of the other direction that were received and
	// refused. Sequenced and retransmitted like data, so that a refusal
	// always precedes the acknowledgement that covers it.
	CtlRefuse = 0xd6
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
	ReasonNoPort Reason = 1 // nobody owns the destination port: final
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

// ErrControl: a control payload of the wrong size or content.
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
