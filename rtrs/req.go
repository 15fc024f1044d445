package rtrs

import (
	"time"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Op is the direction of a request's data.
type Op uint8

// The two kinds of request.
const (
	Read  Op = iota // Data is filled by the server
	Write           // Data goes to the server
)

// MaxUsr is the most bytes of a request's user header: with the RTRS message
// behind it, it is the tail of one write.
const MaxUsr = 488

// minHdr is how many bytes of a chunk a request's headers may need. Any server has more.
const minHdr = MaxUsr + rtrswire.ReadLen + rtrswire.DescLen

// Req is one request of a client. The caller owns the memory, fills the first
// part in, and may use it again when it is done; it is not copied meanwhile.
// The zero value of the rest is right.
type Req struct {
	Op    Op
	Admin bool   // goes on connection 0, and is sent before Resume too
	Flow  uint32 // chooses among the other connections; requests of one flow share one
	Usr   []byte // the user header, at most MaxUsr bytes; copied each time the request is sent
	Data  []byte // Write: the bytes to send. Read: where the answer goes, all of it. nil: none
	// Since is when the limits of a request began that comes again after it was
	// cancelled; 0: they begin when it is submitted.
	Since time.Duration
	// Abandoned may be set at any time, by a caller that does not wait for the request any more: no limit
	// ends it, nor its path for its sake. Where it may still happen, others would have to wait for that.
	Abandoned bool
	Err       error // the outcome: nil, a syscall.Errno that the server answered, or an error of this package
	Ctx       any   // the caller's

	// The other fields belong to its Client.
	at        reqState
	expired   bool        // its limit passed while it was in flight
	recalled  error       // it is not sent again, but done with this when its epoch has ended
	again     *ClientPath // sent before, last on this path
	submitted time.Duration
	sent      time.Duration
	path      *ClientPath // inFlight
	epoch     *epoch      // stranded
	permit    uint32      // inFlight, stranded: if session is still the Client's
	session   uint32
	con       uint16
	hasKey    bool
	revoking  bool   // answered, with outcome, and the end of key is Pending
	key       uint32 // of Data, inFlight
	post      uint64 // which post on its connection reads Data, counted from 1; 0: none does
	outcome   error
	in        [numKinds]place
}

// reqState is where a request stands.
type reqState uint8

const (
	idle     reqState = iota // the caller's
	queued                   // waits for a permit or a path
	inFlight                 // on a path, which is connected or closing
	unsent                   // was answered on a path, whose link still reads its memory (settle)
	stranded                 // was on a path that is gone, whose epoch is not fenced
)

// ServerReq is one request at the server, the callee's until it calls
// Server.Reply.
type ServerReq struct {
	Session *ServerSession
	Path    *ServerPath
	Op      Op
	Usr     []byte // the user header, a copy
	// Data lies in the chunk. Of a Write it is the data that came; the peer may still be
	// able to change it if the server was told not to invalidate. Of a Read it is room to
	// fill, with undefined content.
	Data []byte
	Seq  uint64 // of the session, from 1
	Ctx  any    // the callee's; kept when the ServerReq is used again

	stale bool
	chunk uint32
	con   uint16
	msg   rtrswire.Req
	usr   [MaxUsr]byte
	place placed // where it was written
	// arriving says that the end of its chunk's key is Pending: the client may still change it.
	// It is in its chunk already, and nothing of it has been read.
	arriving bool
}

// Stale reports whether no answer will be sent, because the path has gone: a request that
// has not been handed to the store need not be, but Reply is still to be called.
func (r *ServerReq) Stale() bool { return r.stale }
