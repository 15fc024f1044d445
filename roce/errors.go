package roce

import (
	"errors"
	"fmt"
)

// ErrProtocol says that the peer sent what no queue pair may send, such as a message that
// does not begin with its first packet. It was told so, and both queue pairs have failed.
var ErrProtocol = errors.New("roce: the peer broke the protocol")

// ErrNotNow is the error of a guard of Memory that wants to be asked again.
var ErrNotNow = errors.New("roce: the peer is to send it again")

// StatusError is a work request that did not succeed.
type StatusError struct {
	Op     Op
	Status Status
}

func (e *StatusError) Error() string { return fmt.Sprintf("roce: %v: %v", e.Op, e.Status) }

// AccessError says that a peer wanted memory that it may not touch, or to end a key that is
// not its to end. It was told so, without the reason, and both queue pairs have failed.
type AccessError struct {
	Op   Op // OpWrite, OpRead or OpSendInval; of a WRITE with immediate OpWriteImm, if it is one packet
	Key  uint32
	Addr uint64
	N    uint64 // bytes
	Err  error  // ErrKey, ErrQP, ErrRights or ErrRange
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("roce: the peer's %v of %d bytes with key %#x at address %#x: %v", e.Op, e.N, e.Key, e.Addr, e.Err)
}

// Unwrap is why.
func (e *AccessError) Unwrap() error { return e.Err }
