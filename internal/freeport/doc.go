// Package freeport finds TCP ports for daemons that are started side by side, in
// tests and in rdsd demo.
//
// The port that a listener on port 0 gets is in the range that source ports are taken from:
// once closed, any connection may take it a moment later, and the daemon it was meant for
// does not start.
//
// Goroutines: none. Locks: none.
package freeport
