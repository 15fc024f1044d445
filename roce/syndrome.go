package roce

import (
	"fmt"
	"time"
)

// Syndrome is what an acknowledgement says.
type Syndrome uint8

// Syndromes. An acknowledgement carries credits in its low five bits, and a receiver that
// is not ready the code of the time after which it may be asked again.
const (
	AckUnlimited       Syndrome = 0x1f // no credits are counted; what rxe always says
	NAKSequence        Syndrome = 0x60 // a packet is missing
	NAKInvalidRequest  Syndrome = 0x61
	NAKRemoteAccess    Syndrome = 0x62
	NAKRemoteOperation Syndrome = 0x63

	syndromeClass = 0xe0
	classAck      = 0x00
	classRNR      = 0x20
	classNAK      = 0x60
)

// IsAck reports whether what it comes with was received.
func (s Syndrome) IsAck() bool { return s&syndromeClass == classAck }

// IsRNR reports whether the receiver had nothing to receive into.
func (s Syndrome) IsRNR() bool { return s&syndromeClass == classRNR }

// IsNAK reports whether it refuses what it comes with.
func (s Syndrome) IsNAK() bool { return s&syndromeClass == classNAK }

// rnrHundredths are the times of the codes of a receiver that is not ready, in hundredths of
// a millisecond. Code 0 is the longest of them.
var rnrHundredths = [32]int{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRDelay is how long the sender of what s answers has to wait.
func (s Syndrome) RNRDelay() time.Duration {
	return time.Duration(rnrHundredths[s&0x1f]) * 10 * time.Microsecond
}

// RNR is the syndrome of a receiver that is not ready and may be asked again after d, or a
// little later: of the times there are it takes the next longer one, or the longest.
func RNR(d time.Duration) Syndrome {
	for code := Syndrome(1); code < 32; code++ {
		if (classRNR | code).RNRDelay() >= d {
			return classRNR | code
		}
	}
	return classRNR
}

// AckTimeout is the time that a code of five bits stands for: 4.096 µs doubled that often.
// Code 0 means that there is no timeout.
func AckTimeout(code uint8) time.Duration {
	if code &= 0x1f; code != 0 {
		return 4096 * time.Nanosecond << code
	}
	return 0
}

func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		return fmt.Sprintf("ack, credits %d", s)
	case s.IsRNR():
		return fmt.Sprintf("receiver not ready for %v", s.RNRDelay())
	case s == NAKSequence:
		return "nak, sequence"
	case s == NAKInvalidRequest:
		return "nak, invalid request"
	case s == NAKRemoteAccess:
		return "nak, remote access"
	case s == NAKRemoteOperation:
		return "nak, remote operation"
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}
