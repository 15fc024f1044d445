// Package mutant names rules of the protocol that can be broken on purpose, one
// at a time, to see that the simulator notices (docs/testing.md). With the
// build tag "mutant" the environment variable RDSD_MUTANT says which one;
// without the tag On is a constant false and the broken branches compile to
// nothing.
package mutant
