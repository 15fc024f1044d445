// Package rds is RDS for one local address: the Engine with its sockets, their
// send and receive accounts, congestion, waiting sends, cancelling, outcomes
// and monitoring, over the connections of package conn.
//
// No goroutine, no lock, no clock, no I/O. The caller has one lock for an Engine with
// everything in it; it calls in steps, each from Begin with the time to End, and carries out
// the Orders that a step leaves. Engines of one node share nothing but an atomic memory
// Budget, which is told at the end of each step.
//
// Read engine.go (the steps), send.go (acceptance to outcome) and recv.go
// (arrival to Recv).
package rds
