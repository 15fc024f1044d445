// Package plain writes for people: text that others have chosen, made safe for a terminal,
// and quantities. It has no state.
//
// Read first: plain.go.
package plain
