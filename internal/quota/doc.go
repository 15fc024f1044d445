// Package quota is the one account of a node's memory. What is held for
// somebody is taken from it with its true size before it is allocated: by kind,
// in the name of a client's user or of a peer, and of the node.
//
// Everybody's use together stays below the limit. One holder's stays below a
// multiple of what is still free (dynamic thresholds, after Choudhury and Hahne):
// who is alone may use three quarters, and each that takes all it can leaves a
// quarter of what it found to the next.
//
// The package has atomics and one lock for the table of holders; nothing waits
// with that held. Read quota.go.
package quota
