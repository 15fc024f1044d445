// Package client is what clients have of a node: their sockets, whichever way they came.
//
// A socket is a Stream's: its messages come over gRPC or over a connection to the
// control socket (docs/shm.md), and what reads, answers and pushes is the same for both
// (sockStream). Or its datagrams go through rings in shared memory, which a reactor
// serves (ringSock), and only its other messages go over the connection (ringControl).
//
// Front is the room's door: it accepts connections to the control socket, serves the
// streams that gRPC brings, counts sockets and their memory, and ends them. It is given
// Deps, and knows nothing of gRPC's server, nor of the node that puts it together.
//
// Locks, outermost first: sockStream.wmu (who writes to a client), the lock of an
// address (package datagram), sockStream.mu. packetStream.mu, held while a message is
// written, comes right behind wmu. Nothing blocks and no system call is
// made with the lock of an address held.
//
// Goroutines: for each stream its reader and its pusher; for each connection to the
// control socket without rings its handler. Each says at its go statement how it ends.
//
// Read front.go first; for the data path stream.go and rings.go.
package client
