// Package health says what is not as it should be with a node, and what mends it: a
// pure room. It is told facts and makes a list of problems; it looks at nothing
// itself, and has no clock, goroutine or lock.
//
// Whoever has the facts (node, for Status.problems) makes an Exam, tells it of the
// node, its budgets, peers, congested ports, volumes and log, in any order, and asks
// for the Problems. However many facts there are, an Exam holds at most PerCode problems
// of each code, the worst ones, and the number of the others.
//
// The codes are an interface: docs/operations.md has the table of them, which a test
// compares with this package's.
//
// Read codes.go, exam.go and peers.go first.
package health
