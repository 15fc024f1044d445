// Package plain makes text that others have chosen safe for a terminal. It has no state.
//
// Read first: plain.go.
package plain
