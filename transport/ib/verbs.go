package ib

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/rdsd/rdsd/transport"
)

// Verbs is an RDMA device at one address: what this package needs of libibverbs and
// librdmacm, or of a program that does their work. A provider implements it.
//
// The methods of Verbs, Domain, QP and Asked may be called from any goroutine, with locks
// held that handlers take. None calls a Handler, and none blocks, except those that say so.
// Handlers are called on the device's thread, with no lock held.
//
// Work that this tree does not ask for is left out, and comes with what asks for it: READ,
// atomic operations, memory windows, inline data.
type Verbs interface {
	// Info describes the device. It does not change.
	Info() Info
	// Thread is what calls the handlers.
	Thread() Thread
	// Memory returns n zero bytes that work requests may name, until release is called. It may
	// block. The error names the limit that is too low.
	Memory(n int) (b []byte, release func(), err error)
	// Adopt makes b, which is outside of Go's heap, memory that work requests may name. It may
	// block. With Caps.AnyMemory it does nothing.
	Adopt(b []byte) (release func(), err error)
	// NewDomain makes a protection domain. withdrawn is called on the reactor's thread for
	// each key for which Withdraw said Pending, when it has ended. Without Caps.Pending it is
	// never called.
	NewDomain(withdrawn func(key uint32, w Withdrawal)) (Domain, error)
	// Dial connects q, which is new, from local (no address, or port 0: any) to remote, and
	// blocks until it is established or ctx ends; q is of no use after an error, but to be
	// closed. An error is ctx's, a *Rejected, or says which step failed: to find the address,
	// the route, or the peer. Sends may be posted when it has returned.
	Dial(ctx context.Context, local, remote netip.AddrPort, q QP, p Param) (Peer, error)
	// Listen has ask called on the reactor's thread for each request to connect to local. ask
	// does not block. How many requests are unanswered is bounded; one that is not answered in
	// half a minute is rejected, and one whose peer has given it up cannot be accepted. After
	// the listener's Close ask is not called any more; requests that it has brought can still
	// be answered.
	Listen(local netip.AddrPort, ask func(Asked)) (transport.Listener, error)
	// Close ends the device. Its domains and listeners are closed before. It may block, and is
	// not called on the reactor's thread.
	Close() error
}

// Info describes a device.
type Info struct {
	Name string // of the device, for people
	Addr netip.Addr
	MTU  int // of a packet's payload in bytes: 256 to 4096
	// MaxSends and MaxRecvs are the largest queues that a queue pair can have.
	MaxSends, MaxRecvs int
	// QPBytes is what a queue pair takes of this process's memory, for whom it is charged to; nil:
	// nothing.
	QPBytes func(QPConfig) int
	Caps    Caps
}

// Caps is what devices differ in. What is false is not promised.
type Caps struct {
	AnyMemory   bool // work requests may name any memory, of Go's heap as well; else Memory and Adopt
	Places      bool // completions of writes with immediate say where they wrote (HasPlace)
	Faults      bool // a Handler is told what its peer did wrong to our memory (*AccessError)
	PeerRevokes bool // Expose takes the right of that name
	Fills       bool // how much peers have written is known (Withdrawal.Known, HasFilled)
	Guards      bool // Domain.Guard is obeyed
	SecretKeys  bool // keys are hard to guess, and are not given again soon
	Pinned      bool // exposed memory keeps its pages: they must not be given back to the system
	Pending     bool // Withdraw may say Pending
}

// Domain is a protection domain: the memory that peers of its queue pairs may touch.
type Domain interface {
	// NewQP makes a queue pair, to be connected by Dial or Asked.Accept, with room for what cfg
	// says, or fails with a *DepthError. It may block.
	NewQP(cfg QPConfig, h Handler) (QP, error)
	// Expose gives peers rights to b, whose first byte they call iova (addresses do not wrap
	// within b). Without Caps.SecretKeys the key may be that of a neighbour plus one.
	Expose(b []byte, iova uint64, r Rights) (key uint32, err error)
	// Withdraw ends key: no write with it begins any more. A key that is unknown, or has been
	// ended by the peer, is Idle and fills nothing.
	Withdraw(key uint32) Withdrawal
	// Guard has f called before bytes of a peer are placed in p, which is memory exposed here,
	// for each packet. It is set before the first queue pair is made. f may be called with a
	// lock of the device held, and takes none that a caller of the device holds. If f fails the
	// bytes are not placed: the queue pair fails with f's error (Handler.Ended), or with
	// ErrNotNow goes on as if the packet had not come, and has the peer send it again a little
	// later. Without Caps.Guards it does nothing.
	Guard(f func(p []byte) error)
	// Close ends all keys, and is called once. What is exposed afterwards is of no use. Queue
	// pairs live on.
	Close()
}

// ErrNotNow is the error of a guard that wants to be asked again.
var ErrNotNow = errors.New("ib: the peer is to send it again")

// Rights are what a peer may do with exposed memory.
type Rights uint8

// The rights of a peer.
const (
	RemoteWrite Rights = 1 << iota // write it
	PeerRevokes                    // end the key by SendInval
)

// Withdrawal is how the end of a key went.
type Withdrawal struct {
	State WithdrawState
	// Filled is how many bytes, from the first one on and without a gap, peers have written
	// since the memory was exposed, if Known, which it is not while State is Pending.
	Filled int
	Known  bool
}

// WithdrawState says whether an ended key's memory is at rest.
type WithdrawState uint8

// The states of memory whose key was ended.
const (
	Idle    WithdrawState = iota // nothing is written any more
	Busy                         // a write is under way: nothing is known until the queue pairs are closed
	Pending                      // the device will say so (Verbs.NewDomain)
)

// QPConfig is what a queue pair is made with.
type QPConfig struct {
	Sends int // work requests of Post that have not completed
	Recvs int // slots that have not completed
}

// DepthError says that a queue pair cannot have such queues.
type DepthError struct {
	Asked, Max QPConfig
	Err        error // why, if it is not the device's limit
}

func (e *DepthError) Error() string {
	s := fmt.Sprintf("a queue pair of %d sends and %d receives is too large: the device has %d and %d",
		e.Asked.Sends, e.Asked.Recvs, e.Max.Sends, e.Max.Recvs)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *DepthError) Unwrap() error { return e.Err }

// QP is one end of a reliable connection. Work completes in the order in which it was
// posted, that of Post and that of Receive each by itself.
type QP interface {
	// Number is the queue pair's, of 24 bits.
	Number() uint32
	// Post adds work in order, with one doorbell, and copies wr, but not what it names: that is
	// the device's until the work has completed. n < len(wr): the queue is full, and takes more
	// after completions were polled; work without a completion of its own has left it when a
	// later completion is polled. Work of a queue pair that has failed completes as Flushed,
	// behind what was posted before. An error is of wr[n]: the device cannot do it.
	Post(wr []WR) (n int, err error)
	// Receive adds slots, likewise. It may be called from when q is made; without slots the
	// peer is told to try again.
	Receive(s []Slot) (n int, err error)
	// Poll takes the oldest completions of both queues, and forgets them. One goroutine at a
	// time calls it.
	Poll(c []Completion) (n int)
	// Disconnect tells the peer that the connection has ended and has q fail: nothing posted
	// begins any more, nothing of the peer's is placed, and all that is posted completes, mostly
	// as Flushed. Once the last completion has been polled the device touches no memory for q.
	// It may be called at any time, and again.
	Disconnect()
	// Close frees q. It is called once, after Disconnect and the last completion. No handler of
	// q is called after it, except one that is being called.
	Close()
}

// Handler is told about a queue pair. Its methods are called one at a time.
type Handler interface {
	// Ready tells that Poll has something, after it had returned less than it was asked for
	// (or was never called). It is not called again until Poll returns less again: whoever
	// stops before that calls Poll later without being told.
	Ready()
	// Established tells once, after Asked.Accept, that the peer has taken the connection. Sends
	// posted before may be lost.
	Established()
	// Ended tells once that the queue pair has failed, and why: io.EOF when the peer has
	// disconnected, an *AccessError, an error of Domain.Guard, a *StatusError. It is not
	// called before what completed earlier can be polled, and need not be called after
	// Disconnect.
	Ended(why error)
}

// Op says what a work request does, and what a completion is of.
type Op uint8

// The operations. What begins with Recv is of a slot.
const (
	Send         Op = 1 + iota // into a slot of the peer
	SendImm                    // likewise, with Imm
	SendInval                  // likewise, and ends the peer's key Key before
	Write                      // into the peer's memory at Key and Addr
	WriteImm                   // likewise, and takes a slot of the peer, which gets Imm
	Recv                       // a send has come, N bytes
	RecvWriteImm               // a write with immediate has come, N bytes, none of them in the slot
)

var opNames = [...]string{"no work", "send", "send with immediate", "send with invalidate", "write", "write with immediate",
	"receive", "receive of a write with immediate"}

func (o Op) String() string { return name(opNames[:], int(o)) }

// Flags of a work request.
type Flags uint8

// The flags.
const (
	// Signal asks for a completion. Without it a work request that succeeds has none, and has
	// completed when a later one has. One that fails always has one.
	Signal    Flags = 1 << iota
	Solicited       // the peer is to be woken
)

// MaxPieces is how many pieces a work request has at most.
const MaxPieces = 3

// WR is a work request of Post.
type WR struct {
	ID    uint64 // the caller's own, for the completion
	Op    Op     // Send to WriteImm
	Flags Flags
	Imm   uint32            // SendImm, WriteImm
	Key   uint32            // the peer's: of Write and WriteImm, or to be ended
	Addr  uint64            // of Write and WriteImm
	Piece [MaxPieces][]byte // what is sent, one behind the other
}

// Slot is memory for one message of the peer. A write with immediate needs one too, which
// may have no bytes.
type Slot struct {
	ID   uint64
	Data []byte
}

// Completion is the end of a work request or of a slot.
type Completion struct {
	ID     uint64
	Op     Op // of a slot that did not succeed: Recv
	Status Status
	Has    Has
	N      int // bytes that came, with Recv and RecvWriteImm
	Imm    uint32
	Key    uint32 // HasInval: the one that the peer has ended; HasPlace: of the write
	Addr   uint64 // HasPlace
	Filled int    // HasFilled: that of Withdrawal
}

// Has says which fields of a completion mean something.
type Has uint8

// What a completion has.
const (
	HasImm    Has = 1 << iota // Imm
	HasInval                  // Key was ended by the peer
	HasPlace                  // Key and Addr say where a write with immediate began
	HasFilled                 // Filled, together with HasInval
)

// Status is how a work request ended. After anything but OK the queue pair has failed.
type Status uint8

// How a work request ended.
const (
	OK              Status = iota
	Flushed                // the queue pair failed before it was done; it may have been done for all that
	LocalLength            // a message was longer than its slot
	LocalProtection        // memory was named that is not the device's to use
	RemoteInvalid          // the peer refused it as malformed, or too long for its slot
	RemoteAccess           // the peer's memory is not to be touched so
	RemoteOperation        // the peer could not do it
	RetryExceeded          // the peer did not answer
	RNRExceeded            // the peer had no slot
	OtherFailure           // the device failed
)

var statusNames = [...]string{"ok", "flushed", "local length error", "local protection error", "remote invalid request",
	"remote access error", "remote operation error", "retries exceeded", "receiver not ready", "failure of the device"}

func (s Status) String() string { return name(statusNames[:], int(s)) }

func name(of []string, i int) string {
	if i >= len(of) {
		return fmt.Sprintf("unknown (%d)", i)
	}
	return of[i]
}

// StatusError is a work request that did not succeed.
type StatusError struct {
	Op     Op
	Status Status
}

func (e *StatusError) Error() string { return fmt.Sprintf("%v: %v", e.Op, e.Status) }

// AccessError says that a peer wanted to touch memory of ours that it may not. It is told
// with Caps.Faults.
type AccessError struct {
	Op   Op // Write, WriteImm or SendInval
	Key  uint32
	Addr uint64
	N    int
	Err  error // why not
}

func (e *AccessError) Error() string {
	return fmt.Sprintf("the peer's %v of %d bytes with key %#x at address %#x: %v", e.Op, e.N, e.Key, e.Addr, e.Err)
}

func (e *AccessError) Unwrap() error { return e.Err }

// Param is what one end tells the other about a connection. Responder resources and initiator
// depth are 0 in both directions, because nothing is READ.
type Param struct {
	// Private is at most 56 bytes in a request and 196 in an answer. On the wire it is always that
	// long: what a peer has shown comes with zeros behind it.
	Private []byte
	// Retry is how often the other end's queue pair sends a packet again that is not
	// acknowledged, RNRRetry a message for which there was no slot; 7 is the largest count, and
	// of RNRRetry means for ever. Of what a peer says they are its wishes.
	Retry, RNRRetry uint8
}

// Peer is the other end of a connection.
type Peer struct {
	Local, Remote netip.AddrPort // the ports are the connection manager's
	Param         Param          // that the peer has answered with
}

// Asked is a peer's request to connect. One of Accept, Reject and Forget ends it; the second of
// two has no effect.
type Asked interface {
	Param() Param
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// FromPort reports whether it was sent from RoCEv2's own UDP port, which one program of an
	// address has. Kernels and cards send from others.
	FromPort() bool
	// Accept connects q, which is new and of this device: Handler.Established follows, or
	// Ended. An error: the peer is gone, or was answered.
	Accept(q QP, p Param) error
	// Reject refuses. private is cut after 148 bytes.
	Reject(private []byte)
	// Forget has it be as if the request had been lost, if the device can: the peer asks again.
	// Else it refuses.
	Forget()
}

// ReasonConsumer is the Rejected.Reason of a program, as against the connection manager.
const ReasonConsumer = 28

// Rejected is the error of Dial when the other end said no.
type Rejected struct {
	Remote  netip.AddrPort
	Reason  uint16 // of the REJ message (InfiniBand specification, volume 1, 12.6.7.2)
	Private []byte
}

var reasons = map[uint16]string{
	1: "no queue pair is free", 3: "no resources", 4: "it timed out", 6: "the communication identifier is invalid",
	8: "nobody listens there", 10: "the connection is stale", 12: "the primary address is wrong",
	13: "the primary address is elsewhere", 26: "it takes smaller packets, give both interfaces one MTU", 28: "the program refuses",
}

// Unwrap is the errno of reasons that have one.
func (e *Rejected) Unwrap() error {
	switch e.Reason {
	case 4:
		return syscall.ETIMEDOUT
	case 8:
		return syscall.ECONNREFUSED
	case 10:
		return syscall.ECONNRESET
	}
	return nil
}

func (e *Rejected) Error() string {
	why := reasons[e.Reason]
	if why == "" {
		why = "see the InfiniBand specification, 12.6.7.2"
	}
	return fmt.Sprintf("%v rejected the connection: reason %d, %s", e.Remote, e.Reason, why)
}
