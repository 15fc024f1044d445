package vm

import (
	"flag"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Where the instructions go of what the report measures: perf samples all that runs in the
// guest by its clock, which is its instructions, with those that called it.

var (
	benchOnly    = flag.String("vm.only", "", "of the report, only programs whose name matches this expression")
	benchProfile = flag.Bool("vm.profile", false, "sample what the report measures, and print where its instructions go; rates are lower then")
)

// chosen reports whether a program of the report is to be run.
func chosen(t *testing.T, name string) bool {
	t.Helper()
	re, err := regexp.Compile(*benchOnly)
	if err != nil {
		t.Fatalf("-vm.only: %v", err)
	}
	return re.MatchString(name)
}

// profiled is what run returns, with its samples printed if they are asked for.
func (m *measured) profiled(name string, run func() float64) float64 {
	if !*benchProfile {
		return run()
	}
	file := filepath.Join(m.t.TempDir(), "samples")
	p := start(m.t, "perf", "record", "-q", "-g", "-a", "-e", "cpu-clock", "-F", "10000", "-o", file, "sh", "-c", "echo samples; exec sleep 1d")
	until(m.t, "perf samples", time.Minute, func() bool { return strings.Contains(p.said(), "samples") })
	rate := run()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT)
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		m.t.Fatalf("perf does not end: %s", p.said())
	}
	m.say(name + ":")
	for _, by := range []string{"pid", "pid,sym"} {
		out, err := try(m.t, "perf", "report", "-q", "-i", file, "--stdio", "-g", "none", "--percent-limit", "0.7", "--sort", by)
		if err != nil {
			m.t.Fatalf("%v: %s", err, out)
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimRight(line, " \n"); line != "" {
				m.say(line)
			}
		}
	}
	return rate
}
