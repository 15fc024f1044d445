package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/health"
)

// problemCollector counts what rdsd status would list. Codes and severities are few, so
// are its series, whatever peers and applications do.
type problemCollector struct {
	read     func() []health.Problem
	guard    *guard.Guard
	problems *prometheus.Desc
}

func newProblemCollector(read func() []health.Problem, g *guard.Guard) *problemCollector {
	return &problemCollector{read: read, guard: g, problems: prometheus.NewDesc("rdsd_problems",
		"Problems that rdsd status lists, by code and severity; of each code nine at most.", []string{"code", "severity"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *problemCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.problems }

// Collect implements prometheus.Collector.
func (c *problemCollector) Collect(ch chan<- prometheus.Metric) {
	defer c.guard.Recover(guard.Page, nil) // the library collects in goroutines of its own
	type kind struct {
		code     health.Code
		severity health.Severity
	}
	counts := map[kind]int{}
	for _, p := range c.read() {
		counts[kind{p.Code, p.Severity}]++
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.problems, prometheus.GaugeValue, float64(n), k.code.String(), k.severity.String())
	}
}

// readProblems looks at the node as rdsd status does.
func (f *Front) readProblems() []health.Problem {
	var s snapshot
	f.snapshot(&s)
	return f.problems(&s)
}
