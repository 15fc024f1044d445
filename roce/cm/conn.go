package cm

import (
	"net/netip"
	"time"
)

// Conn is one side of a connection. Its methods return ErrState where its state has no place
// for them, and do nothing then.
type Conn struct {
	// Owner is the caller's; a Manager does not look at it.
	Owner any

	state State
}

// State is where a connection is in its life.
type State uint8

// State is the state of c.
func (c *Conn) State() State { return c.state }

// Local is the address and the port of this side.
func (c *Conn) Local() netip.AddrPort { return netip.AddrPort{} }

// Remote is the address and the port of the other side.
func (c *Conn) Remote() netip.AddrPort { return netip.AddrPort{} }

// Param is what this side has told: its private data is not kept.
func (c *Conn) Param() Param { return Param{} }

// Peer is what the other side has told: after Asked or Connected. The private data has the
// length that the message has room for, MaxDialPrivate or MaxAcceptPrivate, and is c's.
func (c *Conn) Peer() Param { return Param{} }

// Accept answers a peer that dialled. Connected or Refused follow. It fails with ErrParam;
// with ErrBusy as Dial does.
func (c *Conn) Accept(now time.Duration, p Param) error { return errAbsent }

// Reject refuses a peer that dialled, with ReasonConsumer and up to MaxRejectPrivate bytes
// for it. Of c only Released follows. It fails with ErrParam.
func (c *Conn) Reject(now time.Duration, private []byte) error { return errAbsent }

// Wait tells a peer that dialled that the answer takes longer (MRA). A peer that asks again is
// told so without it.
func (c *Conn) Wait(now time.Duration) error { return errAbsent }

// Established says that a packet of the peer came to the queue pair. It is as good as the
// message that the peer has understood the answer (RTU), which may be lost or behind it:
// Connected follows within this call if it had not been called. Elsewhere it does nothing.
func (c *Conn) Established(now time.Duration) {}

// Disconnect ends c, in whatever state it is. If it was connected, Disconnected follows when
// the peer has confirmed it or has been silent for too long; else only Released.
func (c *Conn) Disconnect(now time.Duration) {}
