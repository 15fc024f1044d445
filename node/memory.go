package node

import (
	"os"
	"runtime/debug"
)

const (
	// gcPercent: the daemon's live heap is small (queues are mostly empty), so
	// that the collector's default of 100 makes it run for every few megabytes.
	// At 400 it takes a tenth of the time it took.
	gcPercent = 400
	// memoryOverhead is what the process may take beyond limits.memory_bytes
	// before the collector works harder: maps, stacks, buffers of gRPC.
	memoryOverhead = 512 << 20
)

// TuneMemory sets the collector of this process for a daemon with this
// configuration. It is for programs that are a daemon and nothing else: it
// changes the whole process. GOGC and GOMEMLIMIT of the environment win.
func TuneMemory(c *Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.Limits.MemoryBytes) + memoryOverhead)
	}
}
