// Package walk lists the functions that one datagram of 64 bytes passes in the daemon that
// sends it and in the one that receives it, from a program that counts its own calls. The
// lists stand in docs/architecture.md; make walk writes them anew.
//
// Read walk_test.go.
package walk
