// Package wire holds byte layouts. Those of RDS 3.1 as the Linux kernel speaks
// it, and the few additions two rdsd use between themselves: the 48-byte
// header with its checksum, its extension space, and the control messages.
// Cutting a byte stream into messages is transport.Framer's; the bits of a
// congestion map are cong's. And those of RTRS 2.0 and RNBD 2, messages alone:
// names that begin with RTRS and RNBD, in files named likewise.
//
// All integers of RDS are big-endian on the wire, the congestion map's bits
// little-endian; those of RTRS and RNBD are little-endian, the immediate
// big-endian. The package has no state, no goroutine and no lock; every other
// protocol room calls it. Read header.go, ext.go and control.go first, of
// volumes rtrs.go, rtrs_io.go and rnbd_io.go.
package wire
