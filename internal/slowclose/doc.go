// Package slowclose makes sockets that are slow to close, for tests of who closes what a stranger has sent.
//
// Goroutines: none. Locks: none.
package slowclose
