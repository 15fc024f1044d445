// Package transport is the contract between protocols and the providers that move bytes:
// links of frames, for datagrams, and one-sided links, which place bytes in memory of the
// other side, for volumes. It knows no protocol rule beyond the framing.
//
// It also holds the parts that every provider over a byte stream needs: cutting a stream
// into frames (frame.go), batches of them (batch.go); tagged frames (tag.go), receiving
// them (tagread.go), sending them (tagqueue.go), and the keys of registered memory
// (region.go). All of that is sans-I/O; Regions alone locks.
//
// The conformance suites every provider passes are in transport/transporttest. Read link.go
// and onesided.go (the order of the calls), then the others named here.
package transport
