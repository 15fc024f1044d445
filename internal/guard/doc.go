// Package guard keeps a fault of one from being the end of all.
//
// Work that is done for one socket, link, session or call runs under a Guard. A
// panic in it ends that one, with the reason, and is counted and logged with its
// stack; the daemon goes on. There is one exception. A panic inside a step of a
// protocol engine leaves the state of everybody half changed, and to go on with it
// could lose or double datagrams and blocks without a word: then the process ends
// at once, with ExitCode, and whoever started it starts it again.
//
// What a step is, the Guard knows in two ways: from the functions on the stack of the
// panic (the cores are never called but within one), and from the engine's locks:
// one that cannot be had after the panic was held by whoever panicked.
//
// A nil Guard catches nothing: the panic goes on, as without it.
//
// Goroutines: none of its own but one for a moment after a panic. Locks: none.
package guard
