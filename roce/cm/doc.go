// Package cm is the connection manager of RoCEv2: it tells two queue pairs of each other, as
// the Linux kernel's ib_cm and rdma_cm do it, by management datagrams to queue pair 1.
//
// A Manager belongs to one address. It knows no queue pair, only numbers and parameters of
// them: the caller makes a queue pair, and the manager says when it has a peer, and when that
// peer has gone. There are
//
//   - the messages, byte for byte (mad.go, req.go);
//   - the life of a connection, of the side that dials and of the one that is dialled, as one
//     table of states and events (table.go), and what is done in it (actions.go);
//   - which connection a message is about, and whether its sender is believed (receive.go);
//   - repetitions, and the ends of what lasts too long (timers.go).
//
// docs/protocol.md has the layouts, the table and the times. What is not there: alternate
// paths (LAP), service ID resolution (SIDR), unreliable datagrams, end-to-end flow control.
//
// The package has no goroutine, lock, clock or I/O, and no randomness but the source given:
// the caller guards a Manager, passes the time, and carries what Env.Send is given. What is
// received comes from a network where anybody can send: it is never trusted, nothing is
// allocated by a length in it, and a place for a connection is charged before it is made.
//
// Read table.go, receive.go and conn.go first.
package cm
