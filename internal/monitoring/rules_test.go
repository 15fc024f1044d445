package monitoring

import (
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// alertCase is when one alert fires, and when all is well.
type alertCase struct {
	alert  string
	labels string   // of the alert, severity aside, as in a selector
	fires  []string // series and values of each minute
	well   []string
	at     string // when it has fired
}

// node labels of all series.
const n1 = `job="rdsd",instance="n1"`

// counts are the series and cases of an alert about a counter.
func counts(alert, metric, labels string) alertCase {
	full := n1
	if labels != "" {
		full += "," + labels
	}
	return alertCase{alert, full, []string{metric + "{" + full + "} 0+1x60"}, []string{metric + "{" + full + "} 7x60"}, "40m"}
}

var alertCases = []alertCase{
	{"RdsdDown", n1, []string{`up{` + n1 + `} 0x60`}, []string{`up{` + n1 + `} 1x60`}, "40m"},
	{"RdsdProblem", n1 + `,code="peer-down"`, []string{`rdsd_problems{` + n1 + `,code="peer-down",severity="error"} 1x60`},
		[]string{`rdsd_problems{` + n1 + `,code="peer-down",severity="warning"} 1x60`, `rdsd_problems{` + n1 + `,code="panicked",severity="error"} 1x60`}, "40m"},
	{"RdsdRestarting", n1, []string{`process_start_time_seconds{` + n1 + `} 0+60x60`}, []string{`process_start_time_seconds{` + n1 + `} 5x60`}, "40m"},
	counts("RdsdPanic", "rdsd_panics_total", `what="call"`),
	{"RdsdMemoryNearLimit", n1 + `,budget="memory"`,
		[]string{`rdsd_budget_used{` + n1 + `,budget="memory"} 95x60`, `rdsd_budget_limit{` + n1 + `,budget="memory"} 100x60`},
		[]string{`rdsd_budget_used{` + n1 + `,budget="memory"} 80x60`, `rdsd_budget_limit{` + n1 + `,budget="memory"} 100x60`}, "40m"},
	counts("RdsdLimitRefuses", "rdsd_budget_refused_total", `budget="sockets"`),
	// Twice is enough, four minutes apart, and once is not.
	{"RdsdLimitRefuses", n1 + `,budget="sockets"`, []string{`rdsd_budget_refused_total{` + n1 + `,budget="sockets"} 7 7 8 8 8 8 9x60`},
		[]string{`rdsd_budget_refused_total{` + n1 + `,budget="sockets"} 7 7 8x60`}, "8m"},
	{"RdsdDescriptorsNearLimit", n1 + `,budget="descriptors"`,
		[]string{`rdsd_budget_used{` + n1 + `,budget="descriptors"} 95x60`, `rdsd_budget_limit{` + n1 + `,budget="descriptors"} 100x60`},
		[]string{`rdsd_budget_used{` + n1 + `,budget="descriptors"} 50x60`, `rdsd_budget_limit{` + n1 + `,budget="descriptors"} 100x60`}, "40m"},
	counts("RdsdAcceptErrors", "rdsd_accept_errors_total", ""),
	counts("RdsdLogLost", "rdsd_log_lost_total", ""),
	{"RdsdVersionsDiffer", `job="rdsd"`, []string{`rdsd_build_info{` + n1 + `,version="1"} 1x130`, `rdsd_build_info{job="rdsd",instance="n2",version="2"} 1x130`},
		[]string{`rdsd_build_info{` + n1 + `,version="2"} 1x130`, `rdsd_build_info{job="rdsd",instance="n2",version="2"} 1x130`}, "2h"},
	{"RdsdPeerUnreachable", n1 + `,local="10.0.0.1",peer="10.0.0.2"`,
		[]string{`rdsd_peer_up{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 0x60`, `rdsd_peer_waiting_datagrams{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 9x60`},
		[]string{`rdsd_peer_up{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 0x60`, `rdsd_peer_waiting_datagrams{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 0x60`}, "40m"},
	{"RdsdPortCongested", n1 + `,side="reader",address="10.0.0.1",port="4000"`,
		[]string{`rdsd_congested_port_age_seconds{` + n1 + `,side="reader",address="10.0.0.1",port="4000"} 0+60x60`},
		[]string{`rdsd_congested_port_age_seconds{` + n1 + `,side="sender",address="10.0.0.1",port="4000"} 0+60x60`,
			`rdsd_congested_port_age_seconds{` + n1 + `,side="reader",address="10.0.0.1",port="4001"} 30x60`}, "40m"},
	counts("RdsdOutcomesUnknown", "rdsd_outcome_unknown_total", ""),
	// Eight lanes that are lost once a minute, and eight that are once in five: a peer that is started again.
	{"RdsdLinksFlap", n1 + `,local="10.0.0.1",peer="10.0.0.2"`,
		[]string{`rds_peer_conn_reset_total{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 0+8x60`, `rdsd_peer_paths_up{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 8x60`},
		[]string{`rds_peer_conn_reset_total{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 0+1.6x60`, `rdsd_peer_paths_up{` + n1 + `,local="10.0.0.1",peer="10.0.0.2"} 8x60`}, "40m"},
	counts("RdsdProtocolErrors", "rdsd_protocol_error_total", ""),
	{"RdsdNobodyHasPort", n1, []string{`rds_recv_drop_no_sock_total{` + n1 + `} 0+120x60`}, []string{`rds_recv_drop_no_sock_total{` + n1 + `} 0+30x60`}, "40m"},
	{"RdsdQueueingSlow", n1,
		[]string{`rdsd_queueing_seconds_bucket{` + n1 + `,le="0.268435456"} 0x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="1.073741824"} 0x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="4.294967296"} 0+10x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="+Inf"} 0+10x60`},
		[]string{`rdsd_queueing_seconds_bucket{` + n1 + `,le="0.268435456"} 0+2x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="1.073741824"} 0+10x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="4.294967296"} 0+10x60`,
			`rdsd_queueing_seconds_bucket{` + n1 + `,le="+Inf"} 0+10x60`}, "40m"},
	counts("RdsdHostileClient", "rdsd_rings_hostile_total", ""),
	{"RdsdMappingNotOpen", n1 + `,mapping="v1",node="10.0.0.2",volume="disk"`,
		[]string{`rdsd_mapping_open{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 0x60`}, []string{`rdsd_mapping_open{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 1x60`}, "40m"},
	{"RdsdExportNotOpen", n1 + `,export="disk"`, []string{`rdsd_export_failed{` + n1 + `,export="disk"} 1x60`},
		[]string{`rdsd_export_failed{` + n1 + `,export="disk"} 0x60`, `rdsd_export_open{` + n1 + `,export="disk"} 0x60`}, "40m"},
	// One that is answered in less, and one without a path, of which RdsdMappingNotOpen tells.
	{"RdsdVolumeStalled", n1 + `,mapping="v1",node="10.0.0.2",volume="disk"`,
		[]string{`rdsd_mapping_oldest_request_seconds{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 0+60x60`,
			`rdsd_mapping_open{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 1x60`},
		[]string{`rdsd_mapping_oldest_request_seconds{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 29x60`,
			`rdsd_mapping_open{` + n1 + `,mapping="v1",node="10.0.0.2",volume="disk"} 1x60`,
			`rdsd_mapping_oldest_request_seconds{` + n1 + `,mapping="v2",node="10.0.0.2",volume="disk"} 0+60x60`,
			`rdsd_mapping_open{` + n1 + `,mapping="v2",node="10.0.0.2",volume="disk"} 0x60`}, "40m"},
	{"RdsdExportStalled", n1 + `,export="disk"`, []string{`rdsd_export_oldest_request_seconds{` + n1 + `,export="disk"} 0+60x60`},
		[]string{`rdsd_export_oldest_request_seconds{` + n1 + `,export="disk"} 29x60`}, "40m"},
	{"RdsdVolumePathDown", n1 + `,session="s",role="client",source="10.0.0.1",destination="10.0.0.2",transport="tcp"`,
		[]string{`rdsd_volume_path_up{` + n1 + `,session="s",role="client",source="10.0.0.1",destination="10.0.0.2",transport="tcp"} 0x60`},
		[]string{`rdsd_volume_path_up{` + n1 + `,session="s",role="server",source="10.0.0.1",destination="10.0.0.2",transport="tcp"} 0x60`}, "40m"},
	counts("RdsdVolumeErrors", "rdsd_mapping_request_errors_total", `mapping="v1",node="10.0.0.2",op="write",volume="disk"`),
	{"RdsdVolumeFailovers", n1 + `,session="s"`,
		[]string{`rdsd_volume_path_failovers_total{` + n1 + `,session="s",role="client",source="a",destination="b",transport="tcp"} 0+1x60`},
		[]string{`rdsd_volume_path_failovers_total{` + n1 + `,session="s",role="client",source="a",destination="b",transport="tcp"} 9x60`}, "40m"},
	{"RdsdVolumeSlow", n1 + `,mapping="v1",op="write"`,
		[]string{`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="0.268435456"} 0x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="1.073741824"} 0x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="4.294967296"} 0+10x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="+Inf"} 0+10x60`},
		[]string{`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="0.268435456"} 0+2x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="1.073741824"} 0+10x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="4.294967296"} 0+10x60`,
			`rdsd_mapping_request_seconds_bucket{` + n1 + `,mapping="v1",op="write",le="+Inf"} 0+10x60`}, "40m"},
}

var labelPair = regexp.MustCompile(`(\w+)="([^"]*)"`)

// ruleTests is the file for promtool: each alert fires when it should and not otherwise.
func ruleTests() string {
	var b strings.Builder
	b.WriteString("# When each alert of rdsd.rules.yml fires, and when it does not: promtool test rules.\n" +
		"# Written by go test ./internal/monitoring -update: change internal/monitoring/rules_test.go.\nrule_files:\n  - rdsd.rules.yml\nevaluation_interval: 1m\ntests:\n")
	byName := map[string]Alert{}
	for _, a := range Alerts() {
		byName[a.Name] = a
	}
	for _, c := range alertCases {
		a := byName[c.alert]
		input := func(l []string) {
			b.WriteString("  - interval: 1m\n    input_series:\n")
			for _, s := range l {
				series, values, _ := strings.Cut(s, "} ")
				fmt.Fprintf(&b, "      - series: '%s}'\n        values: '%s'\n", series, values)
			}
			fmt.Fprintf(&b, "    alert_rule_test:\n      - eval_time: %s\n        alertname: %s\n", c.at, c.alert)
		}
		input(c.fires)
		fmt.Fprintf(&b, "        exp_alerts:\n          - exp_labels:\n              severity: %s\n", a.Severity)
		summary, description := a.Summary, a.Description
		for _, p := range labelPair.FindAllStringSubmatch(c.labels, -1) {
			fmt.Fprintf(&b, "              %s: %q\n", p[1], p[2])
			summary = strings.ReplaceAll(summary, "{{ $labels."+p[1]+" }}", p[2])
			description = strings.ReplaceAll(description, "{{ $labels."+p[1]+" }}", p[2])
		}
		fmt.Fprintf(&b, "            exp_annotations:\n              summary: %q\n              description: %q\n              runbook_url: %s\n", summary, description, a.URL())
		input(c.well)
		b.WriteString("        exp_alerts: []\n")
	}
	return b.String()
}

// TestRules: promtool reads the rules, and each alert fires when it should.
func TestRules(t *testing.T) {
	tested := map[string]bool{}
	for _, c := range alertCases {
		tested[c.alert] = true
	}
	for _, a := range Alerts() {
		if !tested[a.Name] {
			t.Errorf("nothing shows when %s fires", a.Name)
		}
		if strings.Contains(a.Description+a.Summary, "$value") {
			t.Errorf("%s has a value in its text, which makes it another alert every time", a.Name)
		}
	}
	promtool(t, "", "check", "rules", "--lint-fatal", rulesFile())
	promtool(t, "", "test", "rules", file("packaging", "prometheus", "rdsd.rules.test.yml"))
}

var threshold = regexp.MustCompile(`[<>]=? *(-?[0-9.e+-]+)`)

// TestQuantileThresholds: what an alert compares a quantile with is a bound of buckets.
func TestQuantileThresholds(t *testing.T) {
	quantiles, compared := []string{"histogram_quantile"}, 0
	for _, r := range Records() {
		if strings.Contains(r.Expr, quantiles[0]) {
			quantiles = append(quantiles, r.Name)
		}
	}
	for _, a := range Alerts() {
		if !slices.ContainsFunc(quantiles, func(q string) bool { return strings.Contains(a.Expr, q) }) {
			continue
		}
		for _, m := range threshold.FindAllStringSubmatch(a.Expr, -1) {
			if compared++; !slices.Contains(bucketBounds(), m[1]) {
				t.Errorf("%s: %s is no bound of buckets %q", a.Name, m[1], bucketBounds())
			}
		}
	}
	if compared < 2 {
		t.Errorf("%d comparisons of quantiles are found, want two", compared)
	}
}

// bucketBounds are those of every histogram, as pages have them; checkPages sees that they are there.
func bucketBounds() (list []string) {
	for i := 10; i <= 34; i += 2 {
		list = append(list, strconv.FormatFloat(math.Ldexp(1, i)/1e9, 'g', -1, 64))
	}
	return list
}

// TestRuleTestsFail: what promtool is given can fail.
func TestRuleTestsFail(t *testing.T) {
	skipWithoutPrometheus(t)
	text := strings.Replace(Rules(), `} > 60`, `} > 60000`, 1)
	dir := t.TempDir()
	write(t, dir+"/rdsd.rules.yml", text)
	write(t, dir+"/test.yml", ruleTests())
	out, err := exec.Command("promtool", "test", "rules", dir+"/test.yml").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "RdsdPortCongested") {
		t.Errorf("a rule that never fires passes: %v\n%s", err, out)
	}
}

// promtool runs it, with stdin if there is any.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	skipWithoutPrometheus(t)
	cmd := exec.Command("promtool", args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func skipWithoutPrometheus(t *testing.T) {
	t.Helper()
	for _, p := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed: scripts/setup.sh does it", p)
		}
	}
}
