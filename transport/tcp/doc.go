// Package tcp moves RDS messages over TCP, byte for byte as the kernel's
// rds_tcp does: no framing but the RDS header, one message behind the other.
//
// Goroutines: one for each link, which reads (Link.read; ends when the
// connection does), one more while a full socket buffer holds back a batch
// (Link.flush), one for each listener. Locks: Link.mu guards what Close,
// Resume and the reader share; nothing is called with it held.
//
// Read link.go (reading, writing, closing), dial.go, sockopt.go.
package tcp
