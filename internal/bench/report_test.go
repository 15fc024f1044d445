package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

var (
	benchReport = flag.Bool("bench.report", false, "measure and print the report (make bench)")
	benchRounds = flag.Int("bench.rounds", 5, "rounds of the report")
	benchFor    = flag.Duration("bench.for", time.Second, "length of one measurement")
	benchIdle   = flag.Int("bench.idle", 5000, "idle peers to measure")
	benchOnly   = flag.String("bench.only", "", "only the rows whose name contains this")
	benchOurs   = flag.Bool("bench.ours", false, "only rdsd's own figures, for a comparison of two builds (scripts/bench_pair.py)")
)

// metric takes one figure out of a sample, in the unit the report shows.
type metric struct {
	unit string
	of   func(sample) float64
}

// row is a line of the report: a figure of a program against a figure of
// another, or against a bar that is absolute.
type row struct {
	name   string // for -bench.only
	what   string
	ours   string // program
	metric metric
	base   string // program, or a group, of which the best one of each round counts; "": the bar is absolute
	baseOf *metric
	most   bool    // the bar is the largest value allowed, else the smallest
	bar    float64 // 0: none, for orientation
}

// groups are programs of which a row takes the best.
var groups = map[string][]string{}

// programsOf are those that a row's base names.
func programsOf(base string) []string {
	switch {
	case base == "":
		return nil
	case groups[base] != nil:
		return groups[base]
	}
	return []string{base}
}

// results are the samples of the programs, round by round. A round in which a
// program failed has none.
type results struct {
	samples map[string][]*sample
	failed  map[string]error
}

// TestBenchReport is `make bench`.
func TestBenchReport(t *testing.T) {
	if !*benchReport {
		return // a report, not a test
	}
	rdsdBinary = rdsdtest.Binary(t)
	defer rdsdtest.Remove()
	defer removeCompiled()
	rows := slices.DeleteFunc(slices.Clone(allRows), func(r row) bool { return !strings.Contains(r.name, *benchOnly) })
	if len(rows) == 0 {
		t.Fatalf("no row's name contains %q; there are: %s\n%s", *benchOnly, names(allRows), elsewhere)
	}
	if *benchOurs {
		rows = onlyOurs(rows)
	}
	if slices.ContainsFunc(rows, func(r row) bool { return nodePrograms[r.ours] }) {
		var err error
		if nodeBinary, err = buildNode(t.Context(), t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	if *benchOurs {
		figures(os.Stdout, rows, measure(rows, *benchRounds, *benchFor))
		return
	}
	fmt.Printf("%s\nCommand: make bench%s\n\n", machine(), command())
	res := measure(rows, *benchRounds, *benchFor)
	fmt.Println("| row | what | measured | against | ratio: median (least to most) | bar | |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, r := range rows {
		fmt.Println(r.line(res))
	}
	fmt.Println()
	fmt.Println(elsewhere)
	for _, name := range sortedKeys(res.failed) {
		var s errSkip
		if !errors.As(res.failed[name], &s) {
			fmt.Printf("%s failed: %v\n", name, res.failed[name])
		}
	}
}

// elsewhere says which rows need a kernel beside rdsd.
const elsewhere = "Not here but in `make bench-vm`, half an hour in a virtual machine whose clock counts instructions (test/vm/bench_test.go, bench_rds_test.go):\n" +
	"vm-serve-4k-*, vm-map-4k-* (volumes with the kernel's RNBD, against nbd-server and the kernel itself) and vm-rds-* (RDS over TCP with a kernel, against kernel to kernel)."

// onlyOurs are the rows without what they are held against; one of each figure.
func onlyOurs(rows []row) (ours []row) {
	for _, r := range rows {
		again := slices.ContainsFunc(ours, func(o row) bool { return o.ours == r.ours && o.metric.unit == r.metric.unit })
		if !strings.HasPrefix(r.ours, "rdsd") && !strings.HasPrefix(r.name, "volume-") || again && !strings.Contains(r.name, "p99") {
			continue
		}
		r.base = ""
		ours = append(ours, r)
	}
	return ours
}

// figures writes a line for each round of a row, parts between tabs: "figure", the
// row, the unit, "less" or "more" for what is better, the value.
func figures(w io.Writer, rows []row, res *results) {
	for _, r := range rows {
		better := "more"
		if r.most {
			better = "less"
		}
		for _, s := range res.samples[r.ours] {
			if s != nil {
				fmt.Fprintf(w, "figure\t%s\t%s\t%s\t%g\n", r.name, r.metric.unit, better, r.metric.of(*s))
			}
		}
		if err := res.failed[r.ours]; err != nil {
			fmt.Fprintf(os.Stderr, "%s failed: %v\n", r.ours, err)
		}
	}
}

func names(rows []row) string {
	var s []string
	for _, r := range rows {
		s = append(s, r.name)
	}
	return strings.Join(s, " ")
}

func sortedKeys[V any](m map[string]V) []string {
	var s []string
	for k := range m {
		s = append(s, k)
	}
	sort.Strings(s)
	return s
}

// measure runs every program that the rows need once a round.
func measure(rows []row, rounds int, d time.Duration) *results {
	var need []string
	for _, r := range rows {
		for _, p := range append([]string{r.ours}, programsOf(r.base)...) {
			if !slices.Contains(need, p) {
				need = append(need, p)
			}
		}
	}
	res := &results{samples: map[string][]*sample{}, failed: map[string]error{}}
	for round := range rounds {
		for _, name := range need {
			var skipped errSkip
			if errors.As(res.failed[name], &skipped) || once[name] && round > 0 {
				continue
			}
			s, err := programs[name](d)
			if err != nil {
				res.failed[name] = err
				res.samples[name] = append(res.samples[name], nil)
				continue
			}
			res.samples[name] = append(res.samples[name], &s)
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
	}
	return res
}

// line is the row in Markdown.
func (r *row) line(res *results) string {
	head := fmt.Sprintf("| %s | %s |", r.name, r.what)
	for _, p := range [][]string{{r.ours}, programsOf(r.base)} {
		if why := res.skipped(p); why != nil {
			return fmt.Sprintf("%s | | | | skipped: %s |", head, why)
		}
	}
	baseOf := r.metric
	if r.baseOf != nil {
		baseOf = *r.baseOf
	}
	var ours, base, ratio []float64
	won := map[string]int{} // rounds, by program
	for i, s := range res.samples[r.ours] {
		if s == nil {
			continue
		}
		o := r.metric.of(*s)
		ours = append(ours, o)
		if r.base == "" {
			ratio = append(ratio, o)
		} else if name, b, ok := res.best(r, baseOf, i); ok {
			base = append(base, b)
			ratio = append(ratio, o/b)
			won[name]++
		}
	}
	if len(ratio) == 0 {
		return head + " | | | | FAILED |"
	}
	against := ""
	if r.base != "" {
		names := sortedKeys(won)
		slices.SortStableFunc(names, func(a, b string) int { return won[b] - won[a] })
		against = fmt.Sprintf("%s %s: %s", digits(median(base)), baseOf.unit, names[0])
	}
	sign, verdict := "≥", "-"
	if r.most {
		sign = "≤"
	}
	bar := "-"
	if r.bar != 0 {
		bar = sign + " " + digits(r.bar)
		verdict = "meets"
		if m := median(ratio); r.most && m > r.bar || !r.most && m < r.bar {
			verdict = "MISSES"
		}
	}
	if n := len(res.samples[r.ours]) - len(ratio); n > 0 {
		verdict += fmt.Sprintf("; %d rounds failed", n)
	}
	return fmt.Sprintf("%s %s %s | %s | %s (%s to %s) | %s | %s |", head, digits(median(ours)), r.metric.unit, against,
		digits(median(ratio)), digits(slices.Min(ratio)), digits(slices.Max(ratio)), bar, verdict)
}

// skipped tells why none of the programs could be measured here, nil if one was.
func (res *results) skipped(programs []string) (why error) {
	for _, p := range programs {
		var s errSkip
		if !errors.As(res.failed[p], &s) {
			return nil
		}
		why = s
	}
	return why
}

// best is the best figure of round i among the programs of a row's base.
func (res *results) best(r *row, m metric, i int) (name string, v float64, ok bool) {
	for _, p := range programsOf(r.base) {
		s := res.samples[p]
		if i >= len(s) || s[i] == nil {
			continue
		}
		if f := m.of(*s[i]); !ok || r.most && f < v || !r.most && f > v {
			name, v, ok = p, f, true
		}
	}
	return name, v, ok
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Clone(v)
	sort.Float64s(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// digits writes three of them.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	case a >= 0.001 || a == 0:
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.1e", v)
}

// machine says where and what: date, commit, processor, kernel, Go.
func machine() string {
	out := func(name string, arg ...string) string {
		b, _ := exec.Command(name, arg...).Output()
		return strings.TrimSpace(string(b))
	}
	cpu := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == "model name" {
				cpu = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	return fmt.Sprintf("%s, commit %s. %d cores of %s, Linux %s, %s; load at the start %s", time.Now().Format("2006-01-02"),
		out("git", "describe", "--always", "--dirty"), runtime.NumCPU(), cpu, strings.TrimSpace(string(kernel)), runtime.Version(),
		strings.Join(strings.Fields(string(load))[:3], " "))
}

// command is how to make the report again.
func command() string {
	var set []string
	flag.Visit(func(f *flag.Flag) {
		if strings.HasPrefix(f.Name, "bench.") && f.Name != "bench.report" {
			set = append(set, "-"+f.Name+" "+f.Value.String())
		}
	})
	if len(set) == 0 {
		return ""
	}
	return fmt.Sprintf(" BENCH=%q", strings.Join(set, " "))
}
