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
// When Send returns nil the datagram is accepted: by the daemon, or here on the credit that
// the daemon has given. How it ended is its Outcome, for sockets bound WithOutcomes. Every call that can wait takes a context and ends with
// it: rdserr.ErrTimeout (also context.DeadlineExceeded) or rdserr.ErrCanceled (also
// context.Canceled). A send that ends without the daemon's answer is marked Undecided in
// its OpError: it may have been accepted, and is never sent a second time.
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
// outcome Unknown, "daemon restarted", except those that were not written to it yet, which
// the next one gets; sends without an answer return ErrShutdown,
// Undecided. WithReconnect(false) makes the socket end instead.
//
// What had arrived and is not read stays, before all that comes later. Over rings that is memory of this process, for
// each life of the daemon as much as its receive buffer holds; with four such buffers unread the socket is
// bound with one of 64 KiB, until the next restart after they were read.
//
// # Without copying
//
// Messages and Borrow hand out payloads where they are, until the next round or until their
// Lease is released. Reserve gives room to write a payload into, which Commit sends. Over
// rings none of them copies anything, and the work for each datagram allocates nothing.
// RecvInto, and RecvBatch with room in what it is given, copy once and allocate nothing. Recv
// and All copy once, to memory that is the caller's for good. While a process receives more
// than 160 MB/s in that way, up to 64 MiB more of it may be garbage: the collector is made to
// run less often, as it would take longer than receiving (garbage.go). There is none of that
// where GOMEMLIMIT is below 512 MiB.
//
// # Administration
//
// Client.Admin looks at a daemon and acts on the peers and sockets of all its clients,
// Client.Volumes on its volumes. Their results have JSON tags: the rdsd commands print them
// with --json, with durations in nanoseconds (_ns) and sizes in bytes (_bytes), and can be
// read back from it, but for VolumeEvent.Err.
//
// # How it works
//
// A Socket has one of two front ends (frontend.go), chosen at Bind (choose.go):
//
//   - rings: memory shared with the daemon, docs/shm.md. Callers post and walk descriptors
//     themselves (rings.go, ringsend.go, ringbatch.go, ringrecv.go); a call that has to
//     wait looks for a while and parks (ringwait.go). Besides its run, a socket has a
//     goroutine that sleeps on the doorbell, and one for a moment while control messages
//     are written.
//   - stream: one gRPC stream (api/rdsd/v1, service Datagrams) and a goroutine that writes
//     the messages callers have left (stream.go, transmit.go).
//
// Socket.run reads the link to the daemon and makes a new one when it ends
// (reconnect.go). All goroutines end with Close. Locks: Socket.mu before those of
// the front end, then those of outcomes and watchers; none is held while writing
// or waiting.
//
// Read first: socket.go, rings.go, reconnect.go; of administration admin.go, volumes.go.
package rdsd
