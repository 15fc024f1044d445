// Package rtrs makes sessions of RTRS, the transport under RNBD: a client with
// a fixed number of requests in flight over one or more paths to a server whose
// memory it writes to. A path is a pair of addresses with several connections
// (one-sided links); a session is known by a name and by a random number. The
// messages are the kernel's (docs/protocol.md), and so are most of the words:
// chunk (a piece of the server's memory), permit (the right to use one), the
// immediate (32 bits that say which chunk holds a request, or is answered).
//
// One rule is ours: a request that may have reached the server on a path that died is sent
// again only after the server has said that no request of that path will touch the store
// any more (a fence; an epoch is one attempt of a path, from one connect to the next). So a
// write that was held up cannot overtake a later one.
//
// The package has no goroutine, lock, clock or I/O, and no randomness but the source given.
// The caller's lock guards a Client with its paths and requests, another one (or the same)
// a Server with all it contains; now is monotonic and never goes back; the two Env
// interfaces are called with that lock held. The rules of the calls are at ClientEnv and
// ServerEnv. In steady state nothing is allocated and no payload is copied.
//
// Read client.go (the calls of a client), clientpath.go (the life of a path), fence.go
// (failover), and on the other side serverpath.go and serverio.go.
package rtrs
