package cm

import (
	"fmt"
	"net/netip"

	"github.com/rdsd/rdsd/roce"
)

// Env is what a Manager needs from its owner. Its methods are called within those of Manager
// and Conn, and do not call these.
//
// Of each Conn is told: Asked first if the peer dialled; then Connected, or Refused, which is
// the end; after Connected comes Disconnected. Neither Refused nor Disconnected follows a call
// of Conn.Reject, or of Conn.Disconnect before Connected: the caller knows. Released is the
// last that is told of every Conn.
type Env interface {
	// Send sends mad, of MADLen bytes, as a datagram (UD SEND) to queue pair 1 of the device at
	// to. It does not keep mad. What cannot be sent may be dropped: it is repeated.
	Send(to netip.AddrPort, mad []byte)

	// Charge asks for the memory of one Conn with peer, ConnBytes, and reports whether it may be
	// allocated. Refund gives it back.
	Charge(peer netip.Addr) bool
	Refund(peer netip.Addr)

	// Asked says that a peer dialled: c.Peer has its parameters. Accept, Reject or Wait follow
	// now or later, but not within this call.
	Asked(c *Conn)
	// Connected says that c is established: c.Peer has the peer's parameters. Packets to the
	// peer may be sent when Connected has returned; the peer may have sent some already.
	Connected(c *Conn)
	// Refused says that c will not be established, and why: the peer's reason, or ReasonTimeout
	// if it did not answer, ReasonStale if it has forgotten that it asked, ReasonNone if it hung
	// up. The private data is that of the peer's REJ; it is not valid after the call.
	Refused(c *Conn, reason Reason, private []byte)
	// Disconnected says that c has ended after it was established. The error is nil if this
	// side asked for it and the peer confirmed; otherwise ErrPeer, ErrStale or ErrSilent.
	Disconnected(c *Conn, why error)
	// Released says that c's time-wait is over, and it is no more: the number of its queue pair
	// may be used for another.
	Released(c *Conn)
}

// ConnBytes is what one connection is charged with: the Conn and its places in the tables of a
// Manager.
const ConnBytes = 1536

// Param is what one side of a connection tells the other of its queue pair. What only the side
// that dials says is the same for both.
type Param struct {
	QPN      uint32   // number of the queue pair, of 24 bits, 2 or more
	RecvPSN  roce.PSN // number of the first packet that this side receives: with which the other starts
	MTU      int      // of the path in bytes: 256, 512, 1024, 2048 or 4096; only the side that dials says it
	Reads    uint8    // READs and atomics that this side has outstanding (initiator depth)
	ReadsIn  uint8    // those that it can serve at a time (responder resources)
	Retry    uint8    // times the other may repeat a packet, up to 7; only the side that dials says it
	RNRRetry uint8    // times the other may repeat for want of a receive, up to 7, which is for ever
	Ack      uint8    // code of the time until a packet is acknowledged, 4.096 µs × 2^Ack, of 5 bits; only the side that dials says it
	SRQ      bool     // the queue pair takes its receives from a shared queue
	Private  []byte   // up to MaxDialPrivate or MaxAcceptPrivate bytes; shorter ones are filled with zeros on the wire
}

// Limits of private data in bytes.
const (
	MaxDialPrivate   = 56  // of Dial: what RDMA-CM's header leaves of the REQ's 92
	MaxAcceptPrivate = 196 // of Accept, in the REP
	MaxRejectPrivate = 148 // of Reject, in the REJ
)

const (
	maxQPN  = 1<<24 - 1
	maxCode = 31 // of a time
	maxRep  = 7  // of counts of three bits
)

// check fails with ErrParam.
func (p *Param) check(maxPrivate int) error {
	switch {
	case p.QPN < 2 || p.QPN > maxQPN:
		return fmt.Errorf("%w: queue pair %d, want 2 to %d", ErrParam, p.QPN, maxQPN)
	case p.RecvPSN > maxQPN:
		return fmt.Errorf("%w: first packet %#x, want 24 bits", ErrParam, uint32(p.RecvPSN))
	case p.Retry > maxRep || p.RNRRetry > maxRep:
		return fmt.Errorf("%w: %d and %d repetitions, want 0 to %d", ErrParam, p.Retry, p.RNRRetry, maxRep)
	case p.Ack > maxCode:
		return fmt.Errorf("%w: code %d of a time, want 0 to %d", ErrParam, p.Ack, maxCode)
	case len(p.Private) > maxPrivate:
		return fmt.Errorf("%w: %d bytes of private data, want %d at most", ErrParam, len(p.Private), maxPrivate)
	}
	return nil
}

// Reason is why a connection is refused, as in the field of that name of a REJ.
type Reason uint16

// Reasons that are given or known here (InfiniBand, 12.6.7.2). ReasonNone is on no wire.
const (
	ReasonNone          Reason = 0
	ReasonNoResources   Reason = 3
	ReasonTimeout       Reason = 4
	ReasonUnsupported   Reason = 5
	ReasonInvalidCommID Reason = 6
	ReasonNoListener    Reason = 8 // invalid service ID
	ReasonTransport     Reason = 9 // not a reliable connection
	ReasonStale         Reason = 10
	ReasonInvalidGID    Reason = 12
	ReasonInvalidMTU    Reason = 26
	ReasonConsumer      Reason = 28 // the application said no; its private data may say why
)

var reasonNames = map[Reason]string{
	ReasonNone: "hung up", ReasonNoResources: "no resources", ReasonTimeout: "timeout", ReasonUnsupported: "unsupported request",
	ReasonInvalidCommID: "invalid communication ID", ReasonNoListener: "no listener", ReasonTransport: "invalid transport",
	ReasonStale: "stale connection", ReasonInvalidGID: "invalid address", ReasonInvalidMTU: "invalid MTU", ReasonConsumer: "refused by the application",
}

func (r Reason) String() string {
	if s := reasonNames[r]; s != "" {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}
