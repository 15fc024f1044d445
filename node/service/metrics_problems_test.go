package service

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdsd/rdsd/node/health"
)

func busyProblems() []health.Problem {
	return []health.Problem{{Code: health.PeerDown, Severity: health.Error}, {Code: health.PeerDown, Severity: health.Warning}, {Code: health.PeerDown, Severity: health.Warning}}
}

func TestProblemMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newProblemCollector(busyProblems, nil))
	if l, err := testutil.GatherAndLint(r); err != nil || len(l) > 0 {
		t.Errorf("%v, %v", l, err)
	}
	if err := testutil.GatherAndCompare(r, strings.NewReader(`
# HELP rdsd_problems Problems that rdsd status lists, by code and severity; of each code nine at most.
# TYPE rdsd_problems gauge
rdsd_problems{code="peer-down",severity="error"} 1
rdsd_problems{code="peer-down",severity="warning"} 2
`)); err != nil {
		t.Error(err)
	}
}
