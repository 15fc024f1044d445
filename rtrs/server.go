package rtrs

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// Server serves the sessions of one listener, or of several.
type Server struct {
	cfg    ServerConfig
	chunks wire.RTRSChunks
	env    ServerEnv
}

// ServerSession is a client with its chunks, from its first connected path to
// the loss of the last. One that comes back afterwards is another one.
type ServerSession struct {
	Name string // what the client calls it
	Ctx  any    // the user's
}

// ServerPath is one life of a path of a client.
type ServerPath struct {
	Local, Remote netip.AddrPort // of its first connection
	Ctx           any            // the shell's
}

// ServerCon is one connection of a path, or a request to make one.
type ServerCon struct {
	Path *ServerPath // nil if it was refused
	Num  int
	Ctx  any // the shell's, as given to Connect
}

// ServerPathInfo describes a path.
type ServerPathInfo struct {
	Local, Remote netip.AddrPort
	Session       string // name, "" until it is known
	State         State
	Since         time.Duration
	Stats         ServerPathStats
}

// ServerStats are numbers of a server as a whole.
type ServerStats struct {
	Sessions int
	Paths    int // those still connecting or draining included
	Inflight int // requests that Reply was not called for
	Refused  uint64
	Replaced uint64
	Fenced   uint64 // epochs that clients had fenced
	Violated uint64 // paths given up because the peer broke the protocol
}

// NewServer returns a server without a session. generation is a random number.
func NewServer(cfg ServerConfig, env ServerEnv, generation uint32, now time.Duration) (*Server, error) {
	return nil, nil
}

// Connect is a link's request to be let in, with the private data that it
// showed. ServerEnv.Accept or Reject is called from within, with a ServerCon
// that has ctx; the same is returned.
func (s *Server) Connect(now time.Duration, ctx any, req []byte, local, remote netip.AddrPort) *ServerCon {
	return nil
}

// Reply ends r. Read: its first n bytes of Data are filled, what is beyond is
// sent as zeroes. err: an error with a syscall.Errno in it, or nil. r may be
// used by another request at once.
func (s *Server) Reply(now time.Duration, r *ServerReq, n int, err error) {}

// Sessions and Paths are those there are. The slices are new.
func (s *Server) Sessions() []*ServerSession { return nil }
func (s *Server) Paths() []*ServerPath       { return nil }

// Stats are the numbers of the server.
func (s *Server) Stats() ServerStats { return ServerStats{} }

// Disconnect gives p up; the client may connect it anew.
func (s *Server) Disconnect(now time.Duration, p *ServerPath) {}

// End gives all paths of e up.
func (s *Server) End(now time.Duration, e *ServerSession) {}

// Close gives everything up; then ServerEnv.Closed, when all links are closed
// and every request was replied to. Connect refuses from now on.
func (s *Server) Close(now time.Duration) {}

// Tick and Next are as Client's.
func (s *Server) Tick(now time.Duration) (next time.Duration) { return Never }
func (s *Server) Next() time.Duration                         { return Never }

// UUID is the session's number, Paths its paths in the order they came.
func (e *ServerSession) UUID() [16]byte       { return [16]byte{} }
func (e *ServerSession) Paths() []*ServerPath { return nil }

// Session is nil while p is not connected.
func (p *ServerPath) Session() *ServerSession { return nil }

// Con is connection num of p, nil if there is none.
func (p *ServerPath) Con(num int) *ServerCon { return nil }

// Info describes p.
func (p *ServerPath) Info() ServerPathInfo { return ServerPathInfo{} }

// ResetStats sets the statistics to zero, but for Inflight.
func (p *ServerPath) ResetStats() {}

// Lost, Gone, Written, Received and Invalidated are as ClientPath's.
func (p *ServerPath) Lost(now time.Duration, conn int, err error) {}
func (p *ServerPath) Gone(now time.Duration)                      {}
func (p *ServerPath) Written(now time.Duration, conn int, key uint32, addr uint64, n int, imm uint32) error {
	return nil
}
func (p *ServerPath) Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error {
	return nil
}
func (p *ServerPath) Invalidated(now time.Duration, conn int, key uint32) error { return nil }
