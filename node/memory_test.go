package node

import (
	"runtime/debug"
	"testing"
)

func TestTuneMemory(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) }()
	cfg := DefaultConfig()
	t.Setenv("GOGC", "100")
	t.Setenv("GOMEMLIMIT", "off")
	TuneMemory(cfg)
	if p := debug.SetGCPercent(100); p != 100 || debug.SetMemoryLimit(-1) != limit {
		t.Errorf("the environment did not win: %d%%", p)
	}
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	defer tuned.Store(0)
	TuneMemory(cfg)
	if got, want := debug.SetMemoryLimit(-1), goLimit(int64(cfg.Limits.MemoryBytes), 0); got != want {
		t.Errorf("limit %d, want %d", got, want)
	}
	if p := debug.SetGCPercent(100); p != gcPercent {
		t.Errorf("GC percent %d, want %d", p, gcPercent)
	}
}
