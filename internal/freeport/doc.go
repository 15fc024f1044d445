// Package freeport finds TCP ports for daemons that are started side by side, in
// tests and in rdsd demo.
//
// The port that a listener on port 0 gets is out of the range that source ports
// are taken from: closed, it can be anybody's connection a moment later, and the
// daemon it was meant for does not start.
//
// Goroutines: none. Locks: none.
package freeport
