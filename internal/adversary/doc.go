// Package adversary is a hostile client of a daemon's own node and a hostile
// peer, as libraries that can do whatever the interfaces let them: they scribble
// over shared memory, change doorbells, leave messages half sent, announce what
// never comes, hold on to what should be given back, and die at any instruction.
//
// An Act is one way to be hostile, with a name and a weight; Acts is the table.
// A Stage is what an act plays on: its target, its random numbers and all that
// it opened, which is closed when the act ends. Worker plays acts drawn from a
// seed until it is told to stop, or killed. It has no code that a daemon runs.
//
// The tests of this package are the runner: two daemons of the rdsd program,
// victims with exact accounts of datagrams and blocks, workers of another user
// beside them, in phases with and without, and what must hold in all of them
// (docs/testing.md, "An adversary").
//
// Read act.go (the table), stage.go, then ring.go and peer.go (the two hostile
// libraries), and run_test.go.
package adversary
