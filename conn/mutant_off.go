//go:build !mutant

package conn

// Mutants: rules broken on purpose, one at a time, to see that the simulator
// finds each (docs/testing.md). Without the build tag they compile to nothing.
func mutant(int) bool { return false }
