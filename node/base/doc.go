// Package base is what every room of a node stands on: its configuration as it is
// now, its log, its counters, the one account of its memory, its descriptors.
//
// A room is given Deps and nothing of the others, so that the node, which puts the
// rooms together, is known to none of them.
//
// Read deps.go first.
package base
