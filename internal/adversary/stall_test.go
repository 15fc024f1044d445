package adversary

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// span is a time on the shared clock in which something took Late.
type span struct{ From, To, Late int64 }

// overlap is how much of [from, to] somebody was late in: the union, for several
// were late at once.
func overlap(spans []span, from, to int64) (sum int64) {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.To-a.Late, b.To-b.Late) })
	for _, s := range spans {
		begun, end := max(s.To-s.Late, from), min(s.To, to)
		if end > begun {
			sum += end - begun
			from = end
		}
	}
	return sum
}

// waited is how long threads waited for a processor in [from, to]; a round trip
// passes them one after the other, so what they waited adds up.
func waited(spans []span, from, to int64) (sum int64) {
	for _, s := range spans {
		if s.To > from && s.From < to {
			sum += s.Late
		}
	}
	return sum
}

// blame says whose a slow round trip of the probe is.
type blame int

const (
	nobodys    blame = iota // it was not slow, the machine's part deducted
	machines                // both stood: nothing can be said of the daemon
	thedaemons              // the controls were in time, or nearly
)

// blamed holds a round trip of the probe against the controls of the same moment:
// relay and watch of the canary, the control of the victims, and what threads waited
// for a processor. What of it the machine took is deducted; and where that is a
// quarter and more the rest is the machine's too, for nobody knows what of what it does
// the controls do not notice.
func blamed(s span, p *phase) (b blame, machine time.Duration) {
	n := max(overlap(slices.Concat(p.Late, p.Own), s.From, s.To), waited(p.Waits, s.From, s.To))
	machine = time.Duration(n)
	switch late := time.Duration(s.Late); {
	case late-machine <= stallLimit:
		return nobodys, machine
	case machine > late/4:
		return machines, machine
	}
	return thedaemons, machine
}

const (
	witnessed = time.Second // between two looks of witness
	flowStood = time.Second // from here on a flow stands
)

// witness asks both daemons, while the probe or a flow stands, for what a datagram may be waiting: what
// the reactors are at says nothing of one that lies in a queue.
func (v *victims) witness() {
	for v.ctx.Err() == nil {
		time.Sleep(stallLimit / 4)
		now := monotonic()
		probe, gaps, stands := time.Duration(now-v.probed.Load()), "", false
		for _, f := range v.flows {
			gap := time.Duration(now - f.at.Load())
			gaps += fmt.Sprintf(" %v", gap.Round(time.Millisecond))
			stands = stands || gap > flowStood
		}
		if probe <= stallLimit && !stands {
			continue
		}
		var said [2]string
		var wg sync.WaitGroup
		for i, at := range v.Pages {
			wg.Go(func() { said[i] = credits(at) })
		}
		wg.Wait()
		text := fmt.Sprintf("the probe had waited for %v, the readers of flows for%s; daemon a %s, daemon b %s; told in %v",
			probe.Round(time.Millisecond), gaps, said[0], said[1], time.Duration(monotonic()-now).Round(time.Millisecond))
		v.mu.Lock()
		v.now.Stood = append(v.now.Stood, look{now, text})
		v.mu.Unlock()
		time.Sleep(witnessed)
	}
}

// credits is what a daemon's metrics say of credits and of memory.
func credits(at string) string {
	b, err := page(at, "/metrics", 2*time.Second)
	if err != nil {
		return err.Error()
	}
	values := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		values[name] = value
	}
	mib := func(name string) float64 {
		n, _ := strconv.ParseFloat(values[name+`{budget="memory"}`], 64)
		return n / (1 << 20)
	}
	return fmt.Sprintf("lacked credits %s times, withheld them %s times, holds %.1f of %.0f MiB",
		values["rdsd_credit_stall_total"], values["rdsd_credit_withheld_total"], mib("rdsd_budget_used"), mib("rdsd_budget_limit"))
}

// stalls judges the slow round trips of a phase.
func (r *run) stalls(what string, p *phase) {
	r.t.Helper()
	for _, l := range p.Stood {
		r.t.Logf("REPORT %s, at %v: %s", what, r.since(l.When), l.What)
	}
	for _, s := range p.Stalls {
		if p.Relay.N == 0 { // nobody knows what the machine was at
			break
		}
		b, machine := blamed(s, p)
		if b == nobodys {
			continue
		}
		at := map[string]int{}
		for _, l := range p.At {
			if l.When >= s.From && l.When <= s.To {
				at[l.What]++
			}
		}
		said := ""
		for _, l := range p.Stood {
			if l.When >= s.From && l.When <= s.To {
				said += fmt.Sprintf("at %v %s; ", r.since(l.When), l.What)
			}
		}
		text := fmt.Sprintf("%s: the probe's round trip from %s on took %v; controls of the same moment: relay and watch %v late, the victims' own %v, threads waited %v; %sthe reactors were at %v",
			what, r.since(s.From), time.Duration(s.Late), time.Duration(overlap(p.Late, s.From, s.To)), time.Duration(overlap(p.Own, s.From, s.To)), time.Duration(waited(p.Waits, s.From, s.To)), said, at)
		if b == machines {
			r.t.Logf("REPORT not judged, as the machine stood for %v: %s", machine, text)
			r.unjudged++
			continue
		}
		r.failf(r.during(s.From, s.To), "%s", text)
	}
}

// TestBlame: a stall is the daemon's where the controls were in time.
func TestBlame(t *testing.T) {
	const ms = int64(time.Millisecond)
	at := func(from, late int64) span { return span{from * ms, (from + late) * ms, late * ms} }
	for _, c := range []struct {
		name  string
		p     phase
		probe span
		want  blame
	}{
		{"nobody was late", phase{}, at(1000, 150), thedaemons},
		{"within the limit", phase{}, at(1000, 100), nobodys},
		{"the relay at another moment", phase{canaryReport: canaryReport{Late: []span{at(800, 150), at(1200, 150)}}}, at(1000, 150), thedaemons},
		{"the relay too, all of it", phase{canaryReport: canaryReport{Late: []span{at(1010, 140)}}}, at(1000, 150), nobodys},
		{"the victims too, half of it", phase{victimsReport: victimsReport{Own: []span{at(1100, 150)}}}, at(1000, 300), machines},
		{"threads waited, half of it", phase{canaryReport: canaryReport{Waits: []span{at(1100, 60), at(1200, 60)}}}, at(1000, 300), machines},
		{"a little, of a long stall", phase{canaryReport: canaryReport{Late: []span{at(1100, 60)}}}, at(1000, 1000), thedaemons},
		{"the same lateness, seen twice", phase{victimsReport: victimsReport{Own: []span{at(1100, 60)}}, canaryReport: canaryReport{Late: []span{at(1100, 60)}}}, at(1000, 300), thedaemons},
	} {
		if got, machine := blamed(c.probe, &c.p); got != c.want {
			t.Errorf("%s: blame %d, not %d; the machine %v", c.name, got, c.want, machine)
		}
	}
}

// TestStallIsSeen: a daemon that stands for a moment is noticed and blamed, beside
// whatever else the machine does; victims that stand themselves blame nobody.
func TestStallIsSeen(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("elsewhere: the victims need a user of their own, which takes root")
	}
	r := &run{t: t, world: newWorld(t)}
	r.begin()
	var told []string // by both daemons
	figures := regexp.MustCompile(fmt.Sprintf(`lacked credits \d+ times, withheld them \d+ times, holds \d+\.\d of %d MiB`, memoryBytes>>20))
	blames := func(pid int) (n [3]int) {
		var p phase
		must(t, r.victims.ask("phase", &p.victimsReport))
		must(t, r.canary.ask("phase", &p.canaryReport))
		time.Sleep(300 * time.Millisecond)
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		time.Sleep(4 * stallLimit)
		must(t, syscall.Kill(pid, syscall.SIGCONT))
		time.Sleep(300 * time.Millisecond)
		p = phase{}
		must(t, r.victims.ask("phase", &p.victimsReport))
		must(t, r.canary.ask("phase", &p.canaryReport))
		for _, l := range p.Stood {
			if len(figures.FindAllString(l.What, -1)) == 2 {
				told = append(told, l.What)
			}
		}
		for _, s := range p.Stalls {
			b, machine := blamed(s, &p)
			n[b]++
			t.Logf("a round trip of %v, the machine %v: %d", time.Duration(s.Late), machine, b)
		}
		return n
	}
	for try := 1; ; try++ { // a machine that stands at the same moment hides it
		n := blames(r.daemons[1].pid())
		if n[thedaemons] > 0 && len(told) > 0 {
			t.Logf("%s", told)
			break
		}
		if n == [3]int{} || try == 10 {
			t.Fatalf("daemon b stood for %v, and %v were blamed; told was %q", 4*stallLimit, n, told)
		}
	}
	if n := blames(r.victims.cmd.Process.Pid); n[thedaemons] > 0 {
		t.Errorf("the victims stood for %v, and a daemon was blamed", 4*stallLimit)
	}
}
