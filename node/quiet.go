package node

import (
	"runtime"
	"runtime/debug"
	"time"
)

// After a burst, such as a thousand peers that connect, a daemon that has nothing more to
// do keeps what the burst left: the collector runs when garbage has outgrown what lives
// by gcPercent, so it may not run again for hours, and what it frees Go keeps for a
// while. A quiet daemon collects for that reason alone, and gives back what is free. Before, it
// lets go what its parts keep for the next burst.

const (
	quietFor = 5 * time.Second
	// quietBytes is what a daemon may allocate in quietFor and be quiet: calls, heartbeats, somebody who looks.
	quietBytes = 256 << 10
	// quietGain is what has to have been taken since the last time, for a collection to be
	// worth its time: some milliseconds of a processor.
	quietGain = 2 << 20
)

// quiet decides when a daemon tidies up.
type quiet struct {
	since     time.Time // that it is quiet
	allocated uint64    // by the process from its start until then
	kept      int64     // bytes that Go had of the process after the last time
}

// due says whether to tidy up: nothing much has been allocated for quietFor, and Go has
// more of the process than after the last time.
func (q *quiet) due(now time.Time, allocated uint64, held int64) bool {
	if allocated-q.allocated > quietBytes || q.since.IsZero() {
		q.since, q.allocated = now, allocated
	}
	return now.Sub(q.since) >= quietFor && held-q.kept > quietGain
}

// tidied is told what Go has of the process now.
func (q *quiet) tidied(now time.Time, allocated uint64, held int64) {
	q.since, q.allocated, q.kept = now, allocated, held
}

// look trims and collects where that is due.
func (q *quiet) look(now time.Time, trim func()) {
	if !q.due(now, allocatedBytes(), readGoUse().all) {
		return
	}
	trim()
	runtime.GC() // what pools keep is let go by the second collection
	debug.FreeOSMemory()
	q.tidied(now, allocatedBytes(), readGoUse().all)
}

var allocatedSample = newSamples("/gc/heap/allocs:bytes")

// allocatedBytes is what has been allocated since the start.
func allocatedBytes() uint64 {
	var v [1]int64
	allocatedSample.read(v[:])
	return uint64(v[0])
}
