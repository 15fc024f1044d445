// Package datagram is the shell around the engines of datagrams (packages rds and
// conn), as package node/volume is around those of volumes: it gives them a lock, a
// clock, links, timers and threads, carries out what they order, and writes down what
// outlives the daemon.
//
// A Host is the datagrams of one node, with a Local for each of its addresses and a
// Worker for each reactor. Who has sockets there takes the lock of a Local (Lock),
// makes one step of the engine, and lets it go: Unlock writes, wakes and dials in the
// caller's own thread, without the lock. Ring is a socket in memory shared with its
// client, as this package sees it.
//
// Locks, outermost first: Local.looking (one lister at a time), Local.mu (the engine and
// everything in it; lane.go has its links), and leaves that nothing is called under.
// Nothing blocks and no system call is made with Local.mu held.
//
// Goroutines: the reactors, which read and write the links, run the timer of each
// Local and whatever is handed to them; the log of lane states; dials under way. Each
// says at its go statement how it ends.
//
// Read host.go, local.go and seam.go first; then transmit.go, lane.go and connect.go.
package datagram
