// Package rtrs holds the byte layouts of RTRS 2.0, the transport under RNBD, as
// the Linux kernel speaks it, and what two rdsd add to it: the private data of a
// connection, the messages, the immediate values and where a request lies in its
// chunk. What the messages are for is package rtrs of the module's root, so
// importers call this one rtrswire.
//
// All integers are little-endian on the wire, but for the immediate, which is
// big-endian. What is reserved is written as zeros: no byte leaves with what a
// buffer held before. The package has no state, no goroutine and no lock; rtrs,
// rnbd and wire/rnbd call it. Read rtrs.go, io.go and imm.go first.
package rtrs
