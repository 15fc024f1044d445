// Package tidy holds the house rules as tests: which package may import which,
// what the protocol core may not touch, and how files look. It has no code
// that runs in a program.
//
// Read arrows_test.go (the import table, printed into docs/architecture.md),
// core_test.go (no goroutine, no clock, no I/O in the core) and files_test.go.
package tidy
