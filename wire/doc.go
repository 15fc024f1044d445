// Package wire holds the byte layouts of RDS 3.1 as the Linux kernel speaks it,
// and the few additions that two rdsd use between themselves: the 48-byte
// header with its checksum, its extension space, and the control messages.
// Cutting a byte stream into messages is transport.Framer's; the bits of a
// congestion map are cong's.
//
// The messages of volumes have packages of their own below: wire/rtrs, and wire/rnbd over
// it. The rooms that speak these protocols are called rtrs and rnbd too, so importers of
// the layouts name them rtrswire and rnbdwire, everywhere (internal/tidy).
//
// All integers of RDS are big-endian on the wire, the congestion map's bits
// little-endian. The package has no state, no goroutine and no lock; every
// protocol room of datagrams calls it. Read header.go, ext.go and control.go
// first.
package wire
