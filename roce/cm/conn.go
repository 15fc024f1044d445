package cm

import (
	"fmt"
	"net/netip"
	"time"
)

// Conn is one side of a connection. Its methods return ErrState where its state has no place
// for them, and do nothing then.
type Conn struct {
	// Owner is the caller's; a Manager does not look at it.
	Owner any

	m     *Manager
	state State
	since time.Duration // when it came to the state
	begun time.Duration // when it was dialled, asked for, or accepted

	dials     bool   // this side asked for it
	knows     bool   // the peer's ID is known
	asker     *asker // among whose it counts, as one that is not established; nil: it does not
	connected bool   // Env.Connected was called
	told      bool   // Env.Refused or Env.Disconnected was called, or is not going to be
	fromPort  bool   // the peer sends from RoCEv2's own port
	rejected  bool   // out is the REJ that answers a REQ that comes again
	lent      bool   // its REP counts among what strangers had (giveBack)

	local, remote netip.AddrPort // of the port space
	id, remoteID  uint32
	guid          uint64 // of the peer's device
	tid           uint64 // of the REQ, which its answers repeat
	param, peer   Param
	private       [MaxAcceptPrivate]byte // of the peer: peer.Private is in it

	out      [MADLen]byte  // what is to be answered, or answers a REQ
	answerIn time.Duration // how long the peer takes for the RTU, by its own word, of which too much is not believed

	// at is the first of again and deadline, and slot the place in Manager.timers.
	at, again, deadline time.Duration
	slot                int
	beside              [numQueues]beside
	queued              bool          // c is in Manager.waiting, and in that of its source
	ended               bool          // c is in Manager.ended
	pause, most         time.Duration // between repetitions: now, and at the most
	patient             time.Duration // how long repetitions go on
}

// State is the state of c.
func (c *Conn) State() State { return c.state }

// Local is the address and the port of this side.
func (c *Conn) Local() netip.AddrPort { return c.local }

// Remote is the address and the port of the other side.
func (c *Conn) Remote() netip.AddrPort { return c.remote }

// FromPort reports whether the peer sends from RoCEv2's own port, which one program of its address has.
func (c *Conn) FromPort() bool { return c.fromPort }

// Param is what this side has told, without the private data.
func (c *Conn) Param() Param { return c.param }

// Peer is what the other side has told, after Asked or Connected. The private data has the
// length that the message has room for, MaxDialPrivate or MaxAcceptPrivate, and is c's.
func (c *Conn) Peer() Param { return c.peer }

// setParam makes the queue pair c's.
func (c *Conn) setParam(p Param) {
	c.param = p
	c.param.Private = nil
	c.m.byQPN[p.QPN] = c
}

// may fails with ErrState if the state of c has no place for a call.
func (c *Conn) may(e event) error {
	if !table[c.state][e].legal {
		return fmt.Errorf("%w: %v in %v", ErrState, e, c.state)
	}
	return nil
}

// Accept answers a peer that dialled. Of p what only the side that dials says is not looked
// at. Connected or Refused follow. It fails with ErrParam; with ErrBusy while the queue pair
// has a connection or is in its time-wait.
func (c *Conn) Accept(now time.Duration, p Param) error {
	if err := c.may(evAccept); err != nil {
		return err
	}
	p.MTU, p.Retry, p.Ack = c.peer.MTU, c.peer.Retry, c.peer.Ack
	if err := p.check(MaxAcceptPrivate); err != nil {
		return err
	}
	if c.m.byQPN[p.QPN] != nil {
		return fmt.Errorf("%w: queue pair %d", ErrBusy, p.QPN)
	}
	c.setParam(p)
	(&rep{
		local: c.id, remote: c.remoteID, qpn: p.QPN, recvPSN: p.RecvPSN, readsIn: p.ReadsIn, reads: p.Reads,
		ackDelay: ackDelayCode, rnrRetry: p.RNRRetry, srq: p.SRQ, guid: c.m.cfg.GUID, private: p.Private,
	}).put(&c.out, c.tid)
	c.event(now, evAccept)
	return nil
}

// Reject refuses a peer that dialled, with ReasonConsumer and up to MaxRejectPrivate bytes
// for it. Of c only Released follows. It fails with ErrParam.
func (c *Conn) Reject(now time.Duration, private []byte) error {
	if err := c.may(evReject); err != nil {
		return err
	}
	if len(private) > MaxRejectPrivate {
		return fmt.Errorf("%w: %d bytes of private data, want %d at most", ErrParam, len(private), MaxRejectPrivate)
	}
	c.putREJ(&rej{reason: ReasonConsumer, private: private})
	c.event(now, evReject)
	return nil
}

// Wait tells a peer that dialled that the answer takes longer (MRA). A peer that asks again is
// told so without it.
func (c *Conn) Wait(now time.Duration) error {
	if err := c.may(evWait); err != nil {
		return err
	}
	c.event(now, evWait)
	return nil
}

// Forget leaves a peer that dialled without an answer, as if its request had been lost: when it asks
// again it is a new one. Of c only Released follows, within this call. A peer that was told to wait
// has to be answered.
func (c *Conn) Forget(now time.Duration) error {
	if err := c.may(evForget); err != nil {
		return err
	}
	c.event(now, evForget)
	return nil
}

// Established says that a packet of the peer came to the queue pair. It is as good as the
// message that the peer has the answer (RTU), which may be lost or behind it: Connected
// follows within this call if it had not been called. Elsewhere it does nothing.
func (c *Conn) Established(now time.Duration) { c.event(now, evPacket) }

// Disconnect ends c, in whatever state it is. If it was connected, and has not ended,
// Disconnected follows when the peer has confirmed it or has been silent for 69 s; else only
// Released.
func (c *Conn) Disconnect(now time.Duration) {
	if table[c.state][evReject].legal {
		c.putREJ(&rej{reason: ReasonConsumer})
	}
	c.event(now, evDisconnect)
}
