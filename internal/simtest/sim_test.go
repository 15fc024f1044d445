package simtest

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Int64("sim.seed", 0, "replay this seed (TestSeed)")
	seedsFlag = flag.Int("sim.seeds", 2000, "how many seeds TestSeeds runs")
	fromFlag  = flag.Int64("sim.from", 1, "the first of them")
)

// TestSeed replays one seed: go test ./internal/simtest -run 'TestSeed$' -sim.seed=n -v
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("no -sim.seed given")
	}
	r := Run(*seedFlag, Options{Verbose: func(l string) { fmt.Println(l) }})
	t.Logf("%+v", r)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
}

func TestSeeds(t *testing.T) {
	start := time.Now()
	bad := 0
	var virtual time.Duration
	var ev uint64
	for s := *fromFlag; s < *fromFlag+int64(*seedsFlag); s++ {
		r := Run(s, Options{})
		virtual += r.Virtual
		ev += r.Events
		if r.Err != nil {
			t.Error(r.Err)
			if bad++; bad > 20 {
				break
			}
		}
	}
	t.Logf("virtual %v real %v events %d", virtual, time.Since(start), ev)
}
