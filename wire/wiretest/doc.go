// Package wiretest reads the vectors of the byte layouts, messages as hex
// beside what they mean, for the tests of wire, wire/rtrs, wire/rnbd and of the
// rooms that speak them. It has no state.
package wiretest
