// Package conn keeps reliable, ordered message streams between two addresses: one Conn for
// each peer, with up to eight Lanes, each a sequence of links and the streams that outlive
// them. It decides which side connects, shakes hands with kernels and other rdsd, numbers,
// acknowledges, retransmits, grants credits, holds back messages that a full receiver
// refused, and gives up links that fell silent. The rules are written down in
// docs/protocol.md. A code in a comment, such as D2 (order), is a promise to applications
// that the simulator holds this package to: docs/testing.md, "The simulator".
//
// The package knows neither sockets nor a concrete transport. The layer above is an Owner, of
// which it asks what it cannot decide; package rds is the only one so far.
//
// No goroutine, no lock, no clock, no I/O: the caller's lock guards a Conn with all it
// contains, every call is given the time, and random numbers come from the source in
// Common. Calls change state and leave Actions in Common, which the caller carries out
// after it has let its lock go.
//
// Read state.go (the life of a lane), xmit.go (what is sent when) and recv.go (how a
// received frame is treated).
package conn
