package adversary

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var runEach = flag.Duration("adversary.each", 0, "how long TestEachAct plays each act (-adversary.acts) by itself")

// cost is what an act did.
type cost struct {
	name   string
	turn   turn
	used   [2]float64 // processors that the daemons used: without, with
	others float64
}

func (c *cost) factor(row string) float64 {
	p50 := func(p *phase) float64 { return p.Rows[row].P50 }
	return c.turn.hostile.Rows[row].P50 / c.turn.without(p50)
}

// TestEachAct plays each act by itself between quiet phases and reports what it
// costs: the victims' p50 with it, by that without, and what the daemons used of
// the processors. It judges nothing: on a machine that others use, the numbers are
// theirs.
func TestEachAct(t *testing.T) {
	if *runEach == 0 {
		t.Skip("elsewhere: it reports and judges nothing; -adversary.each says how long each act is played")
	}
	if os.Getuid() != 0 {
		t.Skip("elsewhere: the adversary and the victims need users of their own, which takes root")
	}
	acts, err := Choose(list(*runActs), list(*runWithout))
	must(t, err)
	r := &run{t: t, rng: rand.New(rand.NewPCG(*runSeed, 0)), world: newWorld(t)}
	t.Cleanup(r.lastWords)
	r.begin()
	var list []cost
	for _, a := range acts {
		list = append(list, r.alone(a))
		t.Log(list[len(list)-1].String())
	}
	slices.SortFunc(list, func(a, b cost) int { return cmp.Compare(b.factor("probe"), a.factor("probe")) })
	var b strings.Builder
	for i := range list {
		fmt.Fprintln(&b, list[i].String())
	}
	t.Logf("REPORT by the probe's p50:\n%s", b.String())
}

// alone plays one act against both daemons, two at a time, between two quiet phases.
func (r *run) alone(a Act) cost {
	c := cost{name: a.Name}
	rest := *runEach / 3
	daemons := func(f func()) (float64, phase) {
		was, before := usageOf(r.daemons[0].pid(), r.daemons[1].pid()), r.usage()
		f()
		now := usageOf(r.daemons[0].pid(), r.daemons[1].pid())
		return (now.ours - was.ours).Seconds() / now.at.Sub(was.at).Seconds(), r.measured(a.Name, before)
	}
	quiet := func() *phase {
		used, p := daemons(func() { time.Sleep(rest) })
		c.used[0] += used / 2
		return &p
	}
	c.turn.quiet = append(c.turn.quiet, quiet())
	used, p := daemons(func() {
		var wg sync.WaitGroup
		for i := range r.targets {
			rng := rand.New(rand.NewPCG(r.rng.Uint64(), uint64(i)))
			wg.Go(func() {
				r.play(i, rng, *runEach, workerOrder{Target: r.targets[i], Acts: []string{a.Name}, Seed: rng.Uint64(), Lanes: 2})
			})
		}
		wg.Wait()
	})
	c.turn.hostile, c.used[1], c.others = &p, used, p.others
	r.settled(0)
	c.turn.quiet = append(c.turn.quiet, quiet())
	return c
}

func (c cost) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-26s", c.name)
	for _, row := range []string{"probe", "grpc", "newcomer", "volume"} {
		fmt.Fprintf(&b, " %s %4.1f x (%5.0f us)", row, c.factor(row), c.turn.hostile.Rows[row].P50)
	}
	fmt.Fprintf(&b, " relay %3.1f x, daemons %.2f -> %.2f, others %.2f", relay50(c.turn.hostile)/c.turn.without(relay50), c.used[0], c.used[1], c.others)
	return b.String()
}
