// Package rds is RDS for one local address: the Engine with its sockets, their
// send and receive accounts, congestion, waiting sends, cancelling, outcomes
// and monitoring, over the connections of package conn.
//
// No goroutine, no lock, no clock, no I/O. The caller has one lock for an Engine with
// everything in it; it calls with the time, ends the step with EndStep, and carries out the
// orders that Take, Ready and States return. Engines of one node share nothing but an
// atomic memory Budget, which is told at the end of each step.
//
// Read engine.go (the steps), send.go (acceptance to outcome) and recv.go
// (arrival to Recv).
package rds
