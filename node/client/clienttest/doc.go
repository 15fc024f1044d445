// Package clienttest is a client of a daemon that does with its socket and its region
// what it likes, for tests: no SDK would do the half of it.
//
// It knows the layouts and the messages and nothing of a daemon's inside.
package clienttest
