// Package rnbd holds the byte layouts of RNBD 2, block devices over RTRS, as the
// Linux kernel speaks it, and what two rdsd add to it. Its messages are the user
// headers of RTRS requests (wire/rtrs). What they are for is package rnbd of the
// module's root, so importers call this one rnbdwire.
//
// All integers are little-endian on the wire. What is reserved is written as
// zeros: no byte leaves with what a buffer held before. The package has no
// state, no goroutine and no lock; rnbd calls it, and node/volume for its
// numbers. Read rnbd.go, open.go and io.go first.
package rnbd
