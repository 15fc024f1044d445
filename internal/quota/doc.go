// Package quota is the one account of a node's memory. Memory held for a client or peer is
// taken from it with its true size before it is allocated: by kind, in the name of a
// client's user or of a peer, and of the node.
//
// The use of all holders together stays below the limit. One holder's stays below a
// multiple of the free memory (dynamic thresholds, after Choudhury and Hahne): a single
// holder may use three quarters, and each that takes all it can leaves a quarter of the
// memory it found to the next.
//
// The package has atomics and one lock for the table of holders; nothing waits
// with that held. Read quota.go.
package quota
