package rtrs

import (
	"time"

	"github.com/rdsd/rdsd/transport"
)

// Never is the time of something that is not due at all.
const Never = time.Duration(1<<63 - 1)

// ClientEnv carries out what a Client decides. It is called from within the Client's
// methods, does not block and does not call back, except where a method says so.
//
// It tells the path what happens on its links: Dialed or Refused once for each Dial, then
// the calls of the link's handler (Sent, Written, Received, Invalidated, Revoked), and Lost
// when a link ended by itself. After Hang these calls are ignored; Gone follows when all links
// have ended.
type ClientEnv interface {
	// Dial makes connection conn of p, from p.Local to p.Remote, for what attr says, showing
	// req, which is the callee's. p.Dialed or p.Refused follows. A dial may last 5 s at least;
	// the Client hangs the path up when it has waited enough. The link is started when Dialed
	// has returned, for messages of p.RecvBytes.
	Dial(p *ClientPath, conn int, attr transport.LinkAttr, req []byte)
	// Hang closes every link of p, and ends dials of it. p.Gone follows once no memory
	// registered for p can be written and no data posted to p is read any more, also when
	// there was no link, but never from within Hang.
	Hang(p *ClientPath)
	// Post posts to connection conn of p. The links posted to are flushed when
	// the call into the Client, or the turn it is part of, is over.
	Post(p *ClientPath, conn int, op *transport.Op)
	// Grant is that of the link of connection conn of p, at an address of its choice, and Take
	// that of p's transport.Domain. After Gone the next attempt of p may have another domain.
	Grant(p *ClientPath, conn int, b []byte) (key uint32, addr uint64)
	Take(p *ClientPath, key uint32) (filled int, how transport.Revocation)

	// Up tells that the first path is connected, or that one is back after all were lost.
	// The server may have forgotten what was opened: only requests with Admin are sent
	// until Resume is called. Up may call Submit, Each, Cancel and Resume.
	Up()
	// Down tells that the last path is lost. Nothing is sent until Up. Down may call
	// Submit.
	Down()
	// Done gives r back to its submitter, with its outcome in r.Err. Done may call Submit,
	// also with r.
	Done(r *Req)
	// Closed is the last call after Client.Close: everything has ended.
	Closed()
	// Event tells what happened, for logs and watchers.
	Event(e Event)
}

// ServerEnv carries out what a Server decides; the rules are those of ClientEnv.
type ServerEnv interface {
	// Accept lets c's link in, in the domain of c.Path, for what attr says and for messages of
	// c.RecvBytes, showing rsp, which is the callee's; its events are told to c.Path from now
	// on, and Lost if it could not be made. Reject refuses it, showing rsp; c has no Path then.
	Accept(c *ServerCon, attr transport.LinkAttr, rsp []byte)
	Reject(c *ServerCon, rsp []byte)
	// Hang closes every link of p. p.Gone follows, as with ClientEnv.
	Hang(p *ServerPath)
	Post(p *ServerPath, conn int, op *transport.Op)
	// Adopt makes mem, which Alloc made, memory that p's links may use, until it is freed; it
	// may have been done before. pinned says that its pages stay: they are not to be trimmed.
	// An error: there is no room for that.
	Adopt(p *ServerPath, mem []byte) (pinned bool, err error)
	// Register and Revoke are those of p's transport.Domain, and Grant that of the link of
	// connection conn of p.
	Register(p *ServerPath, b []byte) (key uint32, addr uint64)
	Grant(p *ServerPath, conn int, b []byte, at uint64) (key uint32, addr uint64)
	Revoke(p *ServerPath, key uint32) transport.Revocation

	// Alloc returns n zero bytes for the chunks of a session that cost nothing until they
	// are touched (an anonymous mapping), or nil when there is no room. Free gives them
	// back. Trim gives the pages within b back; their content is undefined afterwards.
	Alloc(n int) []byte
	Free(b []byte)
	Trim(b []byte)

	// Up tells that s can make requests, Down that it cannot any more. Requests of s
	// without a Reply still need one, when the store is done with them; nothing is sent
	// then.
	Up(s *ServerSession)
	Down(s *ServerSession)
	// Stale tells that requests of s may be stale now (ServerReq.Stale), because a path of it
	// has gone, and that s goes on with others. Those that wait and have nothing at the store
	// should end: the client's next attempt of that path, and its fence, wait for them.
	Stale(s *ServerSession)
	// Request starts r. Its end is told to Server.Reply, perhaps before Request returns.
	Request(r *ServerReq)
	// Closed is the last call after Server.Close: everything has ended.
	Closed()
	Event(e Event)
}
