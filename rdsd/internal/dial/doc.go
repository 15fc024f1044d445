// Package dial finds the daemon a command talks to and says precisely why when
// there is none. It has no state and starts no goroutine.
//
// Read first: dial.go.
package dial
