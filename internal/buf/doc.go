// Package buf is the pool of receive memory: reference-counted buffers in a
// few size classes, counted so that a budget can be kept and a leak seen.
//
// Memory of another owner can be passed around in the same way (Foreign).
//
// A Buf has one owner for each reference; the last Release gives it back. Any goroutine may
// call the package's functions; a Buf's bytes belong to its holder.
//
// It has no lock of its own: pools are sync.Pool, counts are atomic. Read buf.go, foreign.go.
package buf
