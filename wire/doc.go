// Package wire holds the byte layouts of RDS 3.1 as the Linux kernel speaks
// it, and the few additions two rdsd use between themselves: the 48-byte
// header with its checksum, its extension space, and the control messages.
// Cutting a byte stream into messages is transport.Framer's; the bits of a
// congestion map are cong's.
//
// All integers on the wire are big-endian; the congestion map's bits are
// little-endian. The package has no state, no goroutine and no lock; every
// other protocol room calls it. Read header.go, ext.go and control.go first.
package wire
