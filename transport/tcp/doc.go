// Package tcp moves RDS messages over TCP, byte for byte as the kernel's
// rds_tcp does: no framing but the RDS header, one message behind the other.
//
// It also makes one-sided links (tagged frames, docs/protocol.md), for RTRS,
// with connections of their own.
//
// A link belongs to one reactor, whose thread reads it, goes on writing a batch that met a
// full socket buffer, closes it, and calls the handler. Connections are made and accepted
// by package net, and taken over by their descriptor. The links of one Domain have one
// reactor.
//
// Goroutines: one for each listener, and for each handshake of a listener of one-sided
// links, at most 128. Locks: Link.mu guards the fields that Send, Start, Close and the
// thread share, OneSided.mu also those of Post and Flush; socket.fdMu keeps the descriptor
// open while a call of another thread uses it. Nothing is called with either held but the
// system and, with mu, Reactor.Add, Modify, Remove and Do.
//
// Read socket.go, link.go, read.go (and pausing), write.go, close.go, dial.go;
// onesided.go, onesided_dial.go, onesided_listen.go.
package tcp
