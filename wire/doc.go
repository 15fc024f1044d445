// Package wire holds the byte layouts of RDS 3.1 as the Linux kernel speaks
// it, and the few additions two rdsd use between themselves: the 48-byte
// header, its extension space, congestion maps, checksums, and a Framer that
// cuts a TCP byte stream into messages.
//
// All integers on the wire are big-endian; the congestion map's bits are
// little-endian. The package has no state, no goroutine and no lock; every
// other protocol room calls it. Read header.go, ext.go and control.go first.
package wire
