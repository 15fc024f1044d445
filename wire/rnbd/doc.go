// Package rnbd holds the byte layouts of RNBD 2, block devices over RTRS, as the Linux
// kernel speaks it, and the additions of two rdsd. Its messages are the user headers of
// RTRS requests (wire/rtrs). Package rnbd of the module's root speaks the protocol, so
// importers call this one rnbdwire.
//
// All integers are little-endian on the wire. Reserved bytes are written as zeros: no old
// content of a buffer leaves. The package has no state, no goroutine and no lock; rnbd
// calls it, and node/volume for its numbers. Read rnbd.go, open.go and io.go first.
package rnbd
