// Package image copies what is on volumes, block devices and files, and compares
// it: the engine of `rdsd volume copy`. It knows nothing of daemons; a volume is
// an NBD client here.
//
// Copy runs one goroutine that finds out what is data and what is zeroes, and a
// few that read and write; all end before it returns. Nothing is locked: each
// piece belongs to one goroutine, and the counters of a Meter are atomic.
//
// Read first: copy.go, plan.go, file.go.
package image
