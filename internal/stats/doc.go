// Package stats holds the counters of the protocol core: one struct, one for each peer and
// one for events of no peer. Their owner's lock guards them, so that counting on the hot
// path is a plain increment; the daemon reads them under the same lock and adds them up.
// A Hist counts durations in the same way.
//
// It has no goroutine and no lock. Read stats.go.
package stats
