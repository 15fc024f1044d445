package transport

import (
	"context"
	"fmt"
	"net/netip"
)

// Limits of one-sided links.
const (
	MaxPrivate = 196      // bytes shown while connecting: as many as a reliable connection of rdma_cm leaves to the user
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
	// Data is not copied: it is referenced until it is written (which the peer's answer
	// shows, and the link does not tell) or Closed was called.
	Data []byte
	// Tail follows Data; Post copies it. At most MaxTail bytes.
	Tail []byte
}

// Domain is a protection domain: which memory of this side the links made in
// it may write. Safe for concurrent use; nothing in it blocks.
type Domain interface {
	// Register lets peers write p, all of it, through this domain's links until key is
	// revoked. Keys and addresses are hard to guess; a key is not given again soon. After
	// Close its results are of no use.
	Register(p []byte) (key uint32, addr uint64)
	// RegisterAt is Register for memory whose address the peer knows from
	// before: it needs to be told the new key alone. (A verbs device does that by
	// itself.)
	RegisterAt(p []byte, addr uint64) (key uint32)
	// Revoke ends key at once: no write with it begins any more. idle false: a
	// write with it is under way on a link (a peer that breaks the rules, or one
	// that is late); close the links and wait for Closed before p is used or
	// trusted. A key that is unknown, or was revoked already, is idle.
	Revoke(key uint32) (idle bool)
	// Take is Revoke of memory that a peer was asked to fill. filled is how many of its
	// bytes, from the first one on, have been written since it was registered; the bytes
	// behind them are unchanged. Writes count in the order in which they leave no gap.
	Take(key uint32) (filled int, idle bool)
	// Close revokes all keys. The links are to be closed before, by themselves.
	Close()
}

// Guarded is a Domain whose owner is asked before a peer's bytes reach its memory, so that
// it can charge for the pages. See Regions for the rules.
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
	// Start begins to read and to call h, which is not called before.
	Start(h OneSidedHandler)
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
	// and flushes in End. Written, Received and Invalidated are called only there, Closed
	// only outside.
	Begin()
	End()
	// Written tells that n bytes at addr have been placed, whole, by a write with immediate
	// (n may be 0: key and addr are then as sent, and unchecked).
	Written(key uint32, addr uint64, n int, imm uint32) error
	// Received brings a send. data is the call's alone, and at most MaxSend bytes.
	Received(data []byte, imm uint32, hasImm bool) error
	// Invalidated tells that the peer has revoked key, which is done before the call;
	// filled is that of Domain.Take. (A key that is unknown, or in use by a write, ends the
	// link instead.)
	Invalidated(key uint32, filled int) error
	// Closed is called last, once. err is never nil; io.EOF: the peer closed.
	Closed(err error)
}

// OneSidedProvider makes one-sided links of one kind.
type OneSidedProvider interface {
	NewDomain() Domain
	// DialOneSided connects local (port 0, or no address: any) to remote, in d, and shows
	// private (at most MaxPrivate bytes) to the other end; rsp is its answer. A refusal is
	// a *Refused. d is one of this provider's.
	DialOneSided(ctx context.Context, local, remote netip.AddrPort, d Domain, private []byte) (l OneSided, rsp []byte, err error)
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
	// Accept makes the link, in d, and shows private (at most MaxPrivate bytes)
	// to the peer. An error: the peer is gone, or private too long.
	Accept(d Domain, private []byte) (OneSided, error)
	// Reject refuses, and shows private (longer than MaxPrivate: cut there).
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
