package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Limits of one-sided links. Those of private data are what a reliable connection of rdma_cm
// leaves to its user in a REQ, a REP and a REJ.
const (
	MaxConnect = 56       // bytes shown by who connects
	MaxAccept  = 196      // bytes shown by who accepts
	MaxReject  = 148      // bytes shown by who refuses
	MaxSend    = 64 << 10 // bytes of one send
	MaxTail    = 512      // bytes of Op.Tail
)

// OpKind says what a posted operation does.
type OpKind uint8

// The operations. Their numbers are those of the frames over TCP.
const (
	OpWrite     OpKind = 1 + iota // into the peer's memory; its program is not told
	OpWriteImm                    // the same, and Handler.Written is called there
	OpSend                        // Handler.Received is called there
	OpSendImm                     // the same, with Imm
	OpSendInval                   // the peer's key is revoked, Handler.Invalidated called; then Received, if there is data
)

// Op is one operation, done after those posted before it. All of Data and Tail
// is one write or one send.
type Op struct {
	Kind OpKind
	// Key and Addr are the peer's memory (OpWrite, OpWriteImm; a write of no
	// bytes needs neither). OpSendInval: Key is the peer's key to revoke.
	Key  uint32
	Addr uint64
	Imm  uint32 // OpWriteImm, OpSendImm
	// Data is not copied: it is referenced until Handler.Sent has counted this operation, or
	// Closed was called. (A provider may copy what is neither of its Memory nor adopted.)
	Data []byte
	// Tail follows Data; Post copies it. At most MaxTail bytes.
	Tail []byte
}

// Placed says what a write with immediate has placed.
type Placed struct {
	// Known tells whether Key and Addr say where the bytes lie. A verbs device does not tell
	// its program (OneSidedCaps.Places): the bytes are then somewhere in memory that this
	// side has registered for the peer.
	Known bool
	Key   uint32
	Addr  uint64
	N     int // bytes, 0 if none were written: Key and Addr are then as sent, and unchecked
	Imm   uint32
}

// Revocation is how far the end of a key has come.
type Revocation uint8

const (
	// Idle says that nothing writes with the key, and nothing will.
	Idle Revocation = iota
	// Busy says that no write with the key begins any more, but one is under way on a link (of
	// a peer that breaks the rules, or is late). The links are to be closed, and Closed to be
	// waited for, before the memory is used or trusted.
	Busy
	// Pending says that writes with the key may begin and go on until Handler.Revoked is called
	// for it on one of the domain's links, or until all of them have said Closed. It is the
	// answer of devices that revoke by a work request.
	Pending
)

func (r Revocation) String() string {
	if int(r) < len(revocationNames) {
		return revocationNames[r]
	}
	return "unknown"
}

var revocationNames = [...]string{"idle", "busy", "pending"}

// Domain is a protection domain: which memory of this side the links made in
// it may write. Safe for concurrent use; nothing in it blocks.
type Domain interface {
	// Register lets peers write p, all of it, through this domain's links until key is
	// revoked. key 0: the device has no room for it. How well keys and addresses can be guessed,
	// and how soon a key is given again, says OneSidedCaps.SecretKeys. After Close the results
	// are of no use.
	Register(p []byte) (key uint32, addr uint64)
	// Revoke ends a key of Register or Grant. One that is unknown, or has ended already, is
	// Idle. TCP is never Pending.
	Revoke(key uint32) Revocation
	// Take is Revoke of memory that a peer was asked to fill. filled is how many of its
	// bytes, from the first one on, have been written since it was registered; the bytes
	// behind them are unchanged. Writes count in the order in which they leave no gap.
	// Unfilled: the provider cannot tell (OneSidedCaps.Fills), or the answer is Pending, and
	// Handler.Revoked tells.
	Take(key uint32) (filled int, r Revocation)
	// Close revokes all keys. The links are to be closed before, by themselves.
	Close()
}

// Unfilled is what stands for a number of bytes that a provider does not know.
const Unfilled = -1

// ErrNotYet is what a guard's error wraps that may take the same bytes in a moment.
var ErrNotYet = errors.New("transport: there is no room for these bytes yet")

// Guarded is a Domain whose owner is asked before a peer's bytes reach its memory, so that
// it can charge for the pages. See Regions for the rules. Where bytes cannot be left unread (package
// transport/ib), f of DeferReads is called when the guard has failed with ErrNotYet, and only then.
type Guarded interface {
	Domain
	Guard(f func(p []byte) error)
	DeferReads(f func() bool)
}

var _ Guarded = (*Regions)(nil)

// OneSided is a link that writes into memory the other side has registered, as
// a reliable connection of RDMA verbs does. Its methods may be called from any
// goroutine, with locks held that the handler takes, and do not block.
type OneSided interface {
	// Start begins to read and to call h, which is not called before. The peer sends at most
	// recvBytes bytes at once: a longer send may end the link, because no receive is posted
	// for it. (TCP posts none; there it does end it.) Of two calls the second has no effect.
	Start(h OneSidedHandler, recvBytes int)
	// Grant lets the peer write p, at the address at where it is not 0, until key is revoked.
	// The key is good for a write that the peer makes after it has seen anything that was
	// posted on this link after the call: a device binds a window by a work request, in order.
	// It may be of no use on other links of the domain. A device without room ends the link.
	// TCP: a key of the domain, good at once and on all of its links.
	Grant(p []byte, at uint64) (key uint32, addr uint64)
	// Post queues op, in order; op itself is copied, and may be used again at once (callers
	// that post often do so, because a new one would be allocated). After the end of the
	// link it has no effect. An operation beyond the limits ends the link.
	Post(op *Op)
	// Flush writes what is posted, as far as the transport takes it; the rest
	// goes on by itself.
	Flush()
	// Close ends the link at once; Handler.Closed follows if Start was called,
	// never from within Close. After Closed no memory is written by this link
	// and no Data is read; a link that was not started has none after Close.
	Close()
	// LocalAddr and RemoteAddr are the transport's endpoints.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// OneSidedHandler is the owner of a one-sided link. Its methods are called one
// at a time, on the thread that reads the link, with no lock held. An error
// ends the link with it: nothing follows but End and Closed.
type OneSidedHandler interface {
	// Begin and End are called around the events of one turn: the handler posts in between
	// and flushes in End. The other methods are called only there, but Closed only outside.
	Begin()
	End()
	// Sent tells that the Data of the n operations posted first, of those not told about yet,
	// is not read any more: with verbs when there is a completion, over TCP when the system has
	// taken the bytes. It is told before the next event; and when an event was told while
	// operations were not sent, soon after they are, without another event. (A peer can answer
	// an operation before it counts as sent, because a retransmission would read its Data.)
	Sent(n int)
	// Written tells of a write with immediate, all of whose bytes have been placed.
	Written(w Placed) error
	// Received brings a send. data is the call's alone, and at most MaxSend bytes.
	Received(data []byte, imm uint32, hasImm bool) error
	// Invalidated tells that the peer has revoked key, which is done before the call;
	// filled is that of Domain.Take. (A key that is unknown, or in use by a write, ends the
	// link instead.)
	Invalidated(key uint32, filled int) error
	// Revoked tells that key, whose revocation was Pending, is Idle now; filled is that of
	// Domain.Take. It may be told on any link of the domain, and is not any more when that link
	// has ended.
	Revoked(key uint32, filled int) error
	// Closed is called last, once. err is never nil; io.EOF: the peer closed.
	Closed(err error)
}

// LinkAttr is what a link is made for. Devices reserve that much when they make a connection;
// TCP reserves nothing.
type LinkAttr struct {
	// Sends is how many operations are posted at a time for which Sent is not told, about. More
	// are kept by the link until there is room.
	Sends int
	// Recvs is how many writes with immediate and sends the peer may have under way, about. With
	// more its device waits, and tries again.
	Recvs int
}

// OneSidedCaps are what a kind of links can do beyond what all have to.
type OneSidedCaps struct {
	SecretKeys  bool // keys and addresses are hard to guess, and a key is not given again soon
	Places      bool // Placed.Known
	Faults      bool // an access that is not allowed ends the link here with an AccessError
	PeerRevokes bool // the peer may revoke a key (OpSendInval)
	Fills       bool // Take, Invalidated and Revoked tell how much was written
	Guards      bool // its domains are Guarded: memory is charged for by the page, when it is written
	Pinned      bool // each page of registered memory is there, and stays: it cannot be given back
}

// OneSidedProvider makes one-sided links of one kind.
type OneSidedProvider interface {
	// OneSidedCaps tells what its links and domains can do.
	OneSidedCaps() OneSidedCaps
	// Memory returns n zero bytes that can be posted without being copied. An error: the device
	// may not pin as much. TCP: any memory can.
	Memory(n int) ([]byte, error)
	// Adopt makes b, which lies outside of Go's heap, such memory, and lets it be registered,
	// until release is called. By then no link uses it. TCP has nothing to do for that.
	Adopt(b []byte) (release func(), err error)
	NewDomain() Domain
	// DialOneSided connects local (port 0, or no address: any) to remote, in d, and shows
	// private (at most MaxConnect bytes) to the other end; rsp is its answer. A refusal is
	// a *Refused. d is one of this provider's. Whatever an end has shown may come with zeros
	// behind it: messages of rdma_cm are of one length, and do not say how much of it is meant.
	DialOneSided(ctx context.Context, local, remote netip.AddrPort, d Domain, attr LinkAttr, private []byte) (l OneSided, rsp []byte, err error)
	// ListenOneSided calls accept for each request to connect, from its own
	// goroutines, which are bounded in number. The listener's Close waits for them.
	ListenOneSided(local netip.AddrPort, accept func(ConnRequest)) (Listener, error)
}

// ConnRequest is a peer's request to connect. It is answered once, by Accept or Reject,
// during the call that brings it or later, from any goroutine; neither blocks, and the
// second of two answers has no effect.
type ConnRequest interface {
	// Private returns the bytes that the peer shows. They may be kept.
	Private() []byte
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// Accept makes the link, in d, and shows private (at most MaxAccept bytes)
	// to the peer. An error: the peer is gone, private too long, or there is no memory. It may be
	// unanswered then, so Reject is to follow.
	Accept(d Domain, attr LinkAttr, private []byte) (OneSided, error)
	// Reject refuses, and shows private (longer than MaxReject: cut there).
	Reject(private []byte)
}

// Refused is the error of DialOneSided when the other end said no.
type Refused struct {
	Remote  netip.AddrPort
	Private []byte // bytes that it showed
}

func (e *Refused) Error() string {
	return fmt.Sprintf("%v refused the connection (%d bytes of reason)", e.Remote, len(e.Private))
}
