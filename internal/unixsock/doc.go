// Package unixsock makes the Unix sockets that clients of a daemon connect to: that of the
// API, of rings, of the page, and of each mapped volume. Nobody can connect before a socket
// has its mode, one that is in use is not taken away, and what a daemon that died has left
// is replaced.
//
// Read first: listen.go. There is no state and there are no goroutines.
package unixsock
