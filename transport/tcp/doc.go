// Package tcp moves RDS messages over TCP, byte for byte as the kernel's
// rds_tcp does: no framing but the RDS header, one message behind the other.
//
// A link belongs to one reactor, whose thread reads it, writes on what met a
// full socket buffer, closes it, and calls the handler. Connections are made
// and accepted by package net, and taken over by their descriptor.
//
// Goroutines: one for each listener. Locks: Link.mu guards what Send, Start,
// Close and the thread share; Link.fdMu keeps the descriptor open while a call
// of another thread uses it. Nothing is called with either held but the system
// and, with mu, Reactor.Add, Modify and Remove.
//
// Read link.go, read.go (and pausing), write.go, close.go, dial.go.
package tcp
