package adversary

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// figure is one number of a phase.
type figure func(*phase) float64

// turn is a hostile phase between two quiet ones (the last has one before it only).
type turn struct {
	quiet   []*phase
	hostile *phase
}

func turns(quiet, hostile []phase) (list []turn) {
	for i := range hostile {
		t := turn{hostile: &hostile[i]}
		for j := i; j < min(i+2, len(quiet)); j++ {
			t.quiet = append(t.quiet, &quiet[j])
		}
		list = append(list, t)
	}
	return list
}

// busy reports whether others used the machine in any of the turn's phases: what is
// measured then is what they do.
func (t turn) busy() bool {
	for _, p := range t.quiet {
		if p.others > calm {
			return true
		}
	}
	return t.hostile.others > calm
}

// without is the figure beside the turn's hostile phase.
func (t turn) without(f figure) (sum float64) {
	for _, p := range t.quiet {
		sum += f(p)
	}
	return sum / float64(len(t.quiet))
}

// factor is what the adversary makes of the figure in this turn. What the bare relay
// has lost of the same figure from the one phase to the other is the machine's.
func (t turn) factor(f, relay figure) float64 {
	return f(t.hostile) / t.without(f) / max(1, relay(t.hostile)/t.without(relay))
}

// median over turns.
func median(list []turn, f func(turn) float64) float64 {
	var v []float64
	for _, t := range list {
		v = append(v, f(t))
	}
	slices.Sort(v)
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

func relay50(p *phase) float64 { return p.Relay.P50 }
func relay99(p *phase) float64 { return p.Relay.P99 }

// compare holds the victims' round trips with and without the adversary against
// each other, turn by turn, and takes the median of those turns in which nobody else
// used the machine. What is beyond its bar by more than slack is wrong.
func compare(quiet, hostile []phase, slack float64) (report, wrong []string) {
	all := turns(quiet, hostile)
	judged := slices.DeleteFunc(slices.Clone(all), turn.busy)
	note := ""
	if len(judged) < (len(all)+1)/2 {
		note = fmt.Sprintf("; not judged, as others used more than %.2f processors in %d of %d turns", calm, len(all)-len(judged), len(all))
		judged = all
	}
	for name := range quiet[0].Rows {
		for _, q := range []struct {
			name   string
			most   float64
			few    int
			figure figure
			relay  figure
		}{
			{"p50", p50Factor, 1, func(p *phase) float64 { return p.Rows[name].P50 }, relay50},
			{"p99", p99Factor, enough, func(p *phase) float64 { return p.Rows[name].P99 }, relay99},
		} {
			with := func(t turn) float64 { return q.figure(t.hostile) }
			without := func(t turn) float64 { return t.without(q.figure) }
			factor := func(t turn) float64 { return t.factor(q.figure, q.relay) }
			said := fmt.Sprintf("%-9s %s %7.0f us -> %7.0f us (%.1f x, the machine's part taken off)", name, q.name, median(judged, without), median(judged, with), median(judged, factor))
			report = append(report, said)
			if note != "" || hostile[0].Rows[name].N < q.few || median(judged, factor) <= q.most*slack {
				continue // not known, the worst of a few, or well
			}
			var each []string
			for _, t := range all {
				each = append(each, fmt.Sprintf("%.0f -> %.0f us (relay %.0f -> %.0f, others %.1f)", without(t), with(t), t.without(q.relay), q.relay(t.hostile), t.hostile.others))
			}
			wrong = append(wrong, fmt.Sprintf("%s: at most %.0f x; turn by turn %s", said, q.most, strings.Join(each, ", ")))
		}
	}
	slices.Sort(report)
	report = append(report, fmt.Sprintf("a bare relay: p50 %.1f x, p99 %.1f x%s", median(judged, func(t turn) float64 { return relay50(t.hostile) / t.without(relay50) }),
		median(judged, func(t turn) float64 { return relay99(t.hostile) / t.without(relay99) }), note))
	return report, wrong
}

func (r *run) compare() {
	report, wrong := compare(r.quiet, r.hostile, *runSlack)
	for _, line := range report {
		r.t.Logf("REPORT %s", line)
	}
	for _, line := range wrong {
		r.failf(nil, "%s", line)
	}
}

// TestCompare: what the machine does to everybody is not the adversary's, and what
// the adversary does to the victims is.
func TestCompare(t *testing.T) {
	one := func(p50, p99, relay, others float64) phase {
		return phase{victimsReport{Rows: map[string]row{"probe": {N: 1000, P50: p50, P99: p99}}}, canaryReport{Relay: row{N: 1000, P50: relay, P99: relay}}, others}
	}
	for _, c := range []struct {
		name    string
		quiet   [3]phase
		hostile [3]phase
		wrong   string
	}{
		{"the same", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, ""},
		{"p50 thrice", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(300, 500, 50, 0), one(300, 500, 50, 0), one(300, 500, 50, 0)}, "p50"},
		{"p99 six times", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(100, 3000, 50, 0), one(100, 3000, 50, 0), one(100, 3000, 50, 0)}, "p99"},
		{"thrice, and the relay twice", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(300, 900, 100, 0), one(300, 900, 100, 0), one(300, 900, 100, 0)}, ""},
		{"slow from the second turn on, with and without", [3]phase{one(100, 500, 50, 0), one(300, 500, 50, 0), one(300, 500, 50, 0)}, [3]phase{one(300, 500, 50, 0), one(300, 500, 50, 0), one(300, 500, 50, 0)}, ""},
		{"one turn beside others", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(300, 500, 50, 0), one(300, 500, 50, 0), one(100, 500, 50, 1)}, "p50"},
		{"all beside others", [3]phase{one(100, 500, 50, 0), one(100, 500, 50, 0), one(100, 500, 50, 0)}, [3]phase{one(300, 500, 50, 1), one(300, 500, 50, 1), one(300, 500, 50, 1)}, ""},
	} {
		_, wrong := compare(c.quiet[:], c.hostile[:], 1)
		if got := strings.Join(wrong, "\n"); (got != "") != (c.wrong != "") || !strings.Contains(got, c.wrong) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
