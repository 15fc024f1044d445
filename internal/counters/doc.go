// Package counters turns a struct of counter fields into a typed table of
// names and help texts.
//
// A package declares one struct whose fields are uint64 (plain increments under the owner's
// lock) or atomic.Uint64 (increments from anywhere), each with a `counter` and a `help`
// tag. The hot path is then a plain field increment; names are looked up only when the
// table is read. The package starts no goroutine and holds no lock.
//
// Read table.go. The counters of the protocol core are in internal/stats.
package counters
