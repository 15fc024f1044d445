// Package rtrs holds the byte layouts of RTRS 2.0, the transport under RNBD, as the Linux
// kernel speaks it, and the additions of two rdsd: the private data of a connection, the
// messages, the immediate values and where a request lies in its chunk. Package rtrs of the
// module's root speaks the protocol, so importers call this one rtrswire.
//
// All integers are little-endian on the wire, but for the immediate, which is big-endian.
// Reserved bytes are written as zeros: no old content of a buffer leaves. The package has
// no state, no goroutine and no lock; rtrs, rnbd and wire/rnbd call it. Read rtrs.go, io.go
// and imm.go first.
package rtrs
