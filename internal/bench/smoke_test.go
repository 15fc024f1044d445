package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// TestPrograms: every program of the report runs, and what it carries arrives
// whole and in order; the figures of so short a time mean nothing.
func TestPrograms(t *testing.T) {
	rdsdBinary = rdsdtest.Binary(t)
	defer rdsdtest.Remove()
	defer removeCompiled()
	for _, name := range sortedKeys(programs) {
		if nodePrograms[name] || volumePrograms[name] && !volumeSmoke[name] {
			continue // package node's own, and tried there; volumes under one load each
		}
		t.Run(name, func(t *testing.T) {
			s, err := programs[name](50 * time.Millisecond)
			var why errSkip
			if errors.As(err, &why) {
				t.Log(why) // programs of others, which may be there or not
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.rate <= 0 {
				t.Errorf("a rate of %v", s.rate)
			}
			t.Logf("%.4g/s p50 %v cpu %.3g s a million, %.3g allocations", s.rate, s.p50, s.cpu, s.allocs)
		})
	}
}

// TestRowsName: rows name programs that exist, and each has a name of its own.
func TestRowsName(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range allRows {
		if seen[r.name] {
			t.Errorf("two rows %q", r.name)
		}
		seen[r.name] = true
		for _, p := range append(programsOf(r.base), r.ours) {
			if programs[p] == nil {
				t.Errorf("row %s: no program %q", r.name, p)
			}
		}
	}
}

// TestHistogram: no latency is shown more than a bucket's width off.
func TestHistogram(t *testing.T) {
	b, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	for ns := uint64(1); ns < 1<<40; ns += ns/7 + 1 {
		top := bucketTop(bucketOf(ns))
		if top < ns || float64(top-ns) > float64(ns)*2/histSub {
			t.Fatalf("%d ns are shown as %d", ns, top)
		}
	}
	h0 := b.hist()
	for i := range 1000 {
		b.record(time.Duration(i) * time.Microsecond)
	}
	for _, q := range []float64{0.5, 0.99, 0.999} {
		got, want := quantile(h0, b.hist(), q), time.Duration(q*1000)*time.Microsecond
		if diff := got - want; diff < -10*time.Microsecond || diff > 10*time.Microsecond {
			t.Errorf("quantile %v: %v, want about %v", q, got, want)
		}
	}
}
