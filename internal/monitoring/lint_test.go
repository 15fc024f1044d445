package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/stats"
)

// dashboardJSON is what Grafana reads of a file, and its linter asks about.
type dashboardJSON struct {
	ID            *int
	UID, Title    string
	Description   string
	SchemaVersion int
	Editable      *bool
	Templating    struct {
		List []struct {
			Name, Label, Type, AllValue string
			Query                       any
			Datasource                  sourceJSON
			Multi, IncludeAll           bool
			Refresh                     int
		}
	}
	Annotations struct{ List []targetJSON }
	Panels      []panelJSON
}

type sourceJSON struct{ Type, UID string }

type targetJSON struct {
	Datasource                sourceJSON
	Expr, RefID, LegendFormat string
}

type panelJSON struct {
	ID                       int
	Type, Title, Description string
	Datasource               sourceJSON
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []targetJSON
	GridPos                  struct{ X, Y, W, H int }
}

// units are those of Grafana that are used here.
var units = regexp.MustCompile(`^(short|s|bytes|Bps|iops|percentunit)$`)

// TestDashboardsLint holds the files against what Grafana's dashboard-linter demands.
func TestDashboardsLint(t *testing.T) {
	known := knownMetrics(t)
	uids := map[string]bool{}
	for _, want := range Dashboards() {
		raw, err := os.ReadFile(dashboardFile(&want))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range lint(raw, known) {
			t.Errorf("%s: %s", want.UID, p)
		}
		uids[want.UID] = true
	}
	if len(uids) != 4 {
		t.Errorf("dashboards %v, want four", uids)
	}
}

// TestLintFinds: each rule fails on a dashboard that breaks it.
func TestLintFinds(t *testing.T) {
	known := knownMetrics(t)
	d := congestion()
	good := string(d.JSON())
	if l := lint([]byte(good), known); len(l) > 0 {
		t.Fatal(l)
	}
	for _, c := range []struct{ old, with string }{
		{`"title": "Sends refused"`, `"title": ""`},
		{`"description": "Sends a second refused`, `"description2": "Sends a second refused`},
		{`"unit": "s"`, `"unit": ""`},
		{`"uid": "${datasource}"`, `"uid": "PBFA97CFB590B2093"`},
		{`job=~\"$job\"`, `job=\"rdsd\"`},
		{`,instance=~\"$instance\"`, ``},
		{`[$__rate_interval]))`, `[5m]))`},
		{`sum by (instance) (rate(rds_cong_send_error_total{job=~\"$job\",instance=~\"$instance\"}[$__rate_interval]))`, `sum(rds_cong_send_error_total{job=~\"$job\",instance=~\"$instance\"})`},
		{`rdsd_congested_ports{`, `rdsd_congested_portz{`},
		{`"schemaVersion": 39`, `"schemaVersion": 16`},
		{`"id": null`, `"id": 7`},
		{`"allValue": ".+"`, `"allValue": ""`},
		{`"name": "job"`, `"name": "work"`},
	} {
		bad := strings.Replace(good, c.old, c.with, 1)
		if bad == good {
			t.Errorf("there is no %s", c.old)
		} else if len(lint([]byte(bad), known)) == 0 {
			t.Errorf("nothing is wrong with %s", c.with)
		}
	}
}

func lint(raw []byte, known map[string]bool) (problems []string) {
	var d dashboardJSON
	if err := json.Unmarshal(raw, &d); err != nil {
		return []string{err.Error()}
	}
	wrong := func(ok bool, what string) {
		if !ok {
			problems = append(problems, what)
		}
	}
	wrong(d.ID == nil && strings.Contains(string(raw), `"id": null`), "id is not null")
	wrong(d.SchemaVersion == 39 && d.UID != "" && d.Title != "" && d.Description != "", "no uid, title or description, or another schema")
	wrong(d.Editable != nil && !*d.Editable, "editable")
	wrong(!strings.Contains(strings.ReplaceAll(string(raw), `"uid": "${datasource}"`, ""), `"type": "prometheus",
        "uid"`), "a data source by its name")
	vars := d.Templating.List
	if len(vars) != 3 || vars[0].Name != "datasource" || vars[0].Type != "datasource" || vars[0].Query != "prometheus" || vars[0].Label != "Data source" {
		return append(problems, "variables")
	}
	for i, name := range []string{"job", "instance"} {
		v := vars[i+1]
		wrong(v.Name == name && strings.EqualFold(v.Label, name) && v.Type == "query" && v.Datasource.UID == "${datasource}" && v.Multi && v.IncludeAll &&
			v.AllValue == ".+" && v.Refresh == 2, "variable "+name)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		wrong(!ids[p.ID], p.Title+": its id is used twice")
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		wrong(p.Title != "" && strings.HasSuffix(p.Description, "."), p.Title+": no title or description")
		wrong(units.MatchString(p.FieldConfig.Defaults.Unit), p.Title+": no unit")
		wrong(p.Datasource == sourceJSON{"prometheus", "${datasource}"}, p.Title+": data source")
		wrong(len(p.Targets) > 0, p.Title+": no query")
		wrong(p.GridPos.X+p.GridPos.W <= 24 && p.GridPos.W > 0 && p.GridPos.H > 0, p.Title+": out of the grid")
		for _, q := range p.Targets {
			wrong(q.Datasource == p.Datasource, p.Title+": data source of a query")
			wrong(q.LegendFormat != "" || p.Type == "table", p.Title+": a query without a legend")
			for _, s := range lintExpr(q.Expr, known) {
				problems = append(problems, p.Title+": "+s+" in "+q.Expr)
			}
		}
	}
	for _, a := range d.Annotations.List {
		wrong(a.Datasource.UID == "${datasource}", "data source of an annotation")
		for _, s := range lintExpr(a.Expr, known) {
			problems = append(problems, "annotation: "+s)
		}
	}
	return problems
}

var (
	metricRef  = regexp.MustCompile(`\b((?:rds|rdsd|process|go|instance:rdsd)_[a-z0-9_:]+|up|ALERTS)\b(\{[^}]*\})?(\[[^\]]*\])?`)
	counterRef = regexp.MustCompile(`_(total|bucket|count|sum)$`)
	cumulative = regexp.MustCompile(`(rate|increase)\($`)
)

// lintExpr looks at every selector of an expression.
func lintExpr(expr string, known map[string]bool) (problems []string) {
	n := 0
	for _, at := range metricRef.FindAllStringSubmatchIndex(expr, -1) {
		name := expr[at[2]:at[3]]
		var labels, window string
		if at[4] >= 0 {
			labels = expr[at[4]:at[5]]
		}
		if at[6] >= 0 {
			window = expr[at[6]:at[7]]
		}
		n++
		if !known[name] {
			problems = append(problems, name+" is no metric")
		}
		if !strings.Contains(labels, `job=~"$job"`) || !strings.Contains(labels, `instance=~"$instance"`) {
			problems = append(problems, name+" is not of the chosen jobs and instances")
		}
		call := cumulative.FindStringSubmatch(expr[:at[0]])
		switch {
		case counterRef.MatchString(name) && (call == nil || window == ""):
			problems = append(problems, name+" is a counter without a rate")
		case call != nil && !counterRef.MatchString(name):
			problems = append(problems, name+" is no counter")
		case call != nil && call[1] == "rate" && window != "[$__rate_interval]":
			problems = append(problems, name+" has a window of its own")
		}
	}
	if n == 0 {
		problems = append(problems, "no metric")
	}
	return problems
}

// knownMetrics are those of docs/monitoring.md, which is what a daemon shows, with the
// counters of one peer, what the rules record, and those of the libraries.
func knownMetrics(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(file("docs", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"up": true, "ALERTS": true, "process_start_time_seconds": true, "process_cpu_seconds_total": true,
		"process_resident_memory_bytes": true, "process_open_fds": true, "go_goroutines": true}
	for _, m := range regexp.MustCompile("(?m)^\\| `(rdsd?_[a-z0-9_]+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(page), -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			known[m[1]+"_bucket"], known[m[1]+"_count"], known[m[1]+"_sum"] = true, true, true
		}
	}
	for _, f := range stats.Fields {
		if !f.Kernel() {
			known[map[bool]string{true: "rdsd_", false: "rds_"}[f.Own]+"peer_"+f.Name+"_total"] = true
		}
	}
	for _, r := range Records() {
		known[r.Name] = true
	}
	if len(known) < 150 {
		t.Fatalf("docs/monitoring.md has %d metrics", len(known))
	}
	return known
}

// TestRulesKnowTheirMetrics: what rules, runbooks and the operator's page ask for exists.
func TestRulesKnowTheirMetrics(t *testing.T) {
	known := knownMetrics(t)
	check := func(where, text string) {
		for _, m := range metricRef.FindAllStringSubmatch(text, -1) {
			if !known[m[1]] && !strings.HasSuffix(m[1], "_") && m[1] != "up" {
				t.Errorf("%s: %s is no metric", where, m[1])
			}
		}
	}
	for _, r := range Records() {
		check(r.Name, r.Expr)
	}
	for _, a := range Alerts() {
		check(a.Name, a.Expr)
		check(a.Name, a.Runbook)
	}
	page, err := os.ReadFile(file("docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	// What else is called so: a module, and the label of a metric.
	check("operations.md", regexp.MustCompile(`\b(rds_tcp|go_version)\b`).ReplaceAllString(string(page), ""))
}
