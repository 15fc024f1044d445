package service

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// TestDatedRefusals: a refusal is as old as the first look that found it, whatever is asked in between.
func TestDatedRefusals(t *testing.T) {
	var d datedRefusals
	begun := time.Now()
	for i, c := range []struct {
		at    time.Duration
		count uint64
		ago   time.Duration
	}{{0, 0, 0}, {time.Second, 2, 1}, {3 * time.Second, 2, 2 * time.Second}, {4 * time.Second, 3, 1}, {time.Hour, 3, time.Hour - 4*time.Second}, {time.Second, 3, 1}} {
		list := []base.Budget{{Name: "other"}, {Name: "memory_sending", Refused: c.count}}
		d.date(list, begun.Add(c.at))
		if list[0].RefusedAgo != 0 || list[1].RefusedAgo != c.ago {
			t.Errorf("%d: %v and %v ago, want %v", i, list[0].RefusedAgo, list[1].RefusedAgo, c.ago)
		}
	}
}

// TestSweepAllocatesNothing: it comes every second, for as long as the daemon runs.
func TestSweepAllocatesNothing(t *testing.T) {
	w := startWorld(t, func(*config.Config) {})
	now := time.Now()
	w.services.Sweep(now)
	if n := testing.AllocsPerRun(100, func() { w.services.Sweep(now) }); n != 0 {
		t.Errorf("%v objects a sweep", n)
	}
}
