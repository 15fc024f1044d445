// Package rdsd is the Go SDK of rdsd: ordered, reliable datagrams to any port
// of any node through the local daemon, without opening a connection yourself.
//
//	client, err := rdsd.Dial("")                       // the daemon of this node
//	s, err := client.Bind(ctx, local)                  // a socket: local address and port
//	err = s.Send(ctx, dst, []byte("hello"))            // accepted: will arrive once, in order
//	d, err := s.Recv(ctx)                              // from anybody
//
// # What a call promises
//
// When Send returns nil the daemon has accepted the datagram. What became of it
// in the end is its Outcome, for sockets bound WithOutcomes. Every call that can
// wait takes a context and ends with it: rdserr.ErrTimeout (also
// context.DeadlineExceeded) or rdserr.ErrCanceled (also context.Canceled). A
// send that ends without the daemon's answer is marked Undecided in its OpError:
// it may have been accepted, and is never sent a second time.
//
// # Errors
//
// Every error is an *OpError or a *BatchError around a sentinel of package
// rdserr, which carries the errno of the RDS socket interface:
// errors.Is(err, rdserr.ErrCongested) and errors.Is(err, syscall.ENOBUFS) say the
// same. The ones to expect in running: ErrWouldBlock (send buffer full),
// ErrCongested (destination port congested), ErrTooLarge, ErrTimeout, ErrShutdown
// (no daemon).
//
// # When the daemon restarts
//
// The socket binds itself again to the same port, with pauses of 20 ms rising to
// 2 s. Meanwhile Recv waits, Send and SendBatch wait within their context, and
// TrySend returns ErrShutdown. Datagrams that were accepted and undecided have the
// outcome Unknown, "daemon restarted"; sends without an answer return ErrShutdown,
// Undecided. WithReconnect(false) makes the socket end instead.
//
// # How it works
//
// A socket is one gRPC stream (api/rdsd/v1, service Datagrams) and two
// goroutines: Socket.run reads and reconnects, Socket.writer writes what callers
// have left (transmit.go says when a caller writes itself). Both end with Close.
// Locks: Socket.mu before those of the receive queue, the outcomes and the
// watchers; none is held while writing.
//
// Read first: socket.go, transmit.go, reconnect.go.
package rdsd
