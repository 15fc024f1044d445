// Package guard keeps a panic in the work for one client or peer from ending the whole
// daemon.
//
// Work that is done for one socket, link, session or call runs under a Guard. A panic in it
// ends that object, with the reason, and is counted and logged with its stack; the daemon
// goes on. There is one exception. A panic inside a step of a protocol engine leaves the
// state of all its users half changed, and going on with it could lose or double datagrams
// and blocks silently: then the process ends at once, with ExitCode, and the service
// manager starts it again.
//
// The Guard recognizes a step in two ways: by the functions on the stack of the panic (the
// cores are never called but within one), and by the engine's locks: one that cannot be had
// after the panic was held by the panicking goroutine.
//
// A nil Guard catches nothing: the panic goes on, as without it.
//
// Goroutines: none of its own but one for a moment after a panic. Locks: none.
package guard
