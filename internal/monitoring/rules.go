package monitoring

import (
	"fmt"
	"strings"
)

// Record is a recording rule, for panels and alerts that would be slow or long without.
type Record struct{ Name, Expr string }

// Alert is an alerting rule. Its runbook is the section of docs/runbooks.md of that name.
type Alert struct {
	Name, Expr, For, Severity string
	Summary, Description      string // with {{ $labels.x }}, and no value
	Runbook                   string // what to look at and what to do: the section
}

// Severities. A page gets somebody up; a warning is for the day; information explains
// what else is seen.
const (
	Critical = "critical"
	Warning  = "warning"
	Info     = "info"
)

// runbooks is where the sections of docs/runbooks.md are read.
const runbooks = "https://github.com/rdsd/rdsd/blob/main/docs/runbooks.md"

// URL is the address of the runbook.
func (a *Alert) URL() string { return runbooks + "#" + strings.ToLower(a.Name) }

// Rules is the file of rules.
func Rules() string {
	var b strings.Builder
	b.WriteString("# Recording and alerting rules of rdsd, for Prometheus 2.42 and later; docs/monitoring.md.\n" +
		"# Written by go test ./internal/monitoring -update: change internal/monitoring/alerts.go.\n" +
		"# They take the job of rdsd's targets to be called rdsd.\ngroups:\n  - name: rdsd.records\n    rules:\n")
	for _, r := range Records() {
		fmt.Fprintf(&b, "      - record: %s\n        expr: |-\n          %s\n", r.Name, r.Expr)
	}
	b.WriteString("  - name: rdsd.alerts\n    rules:\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: |-\n          %s\n", a.Name, a.Expr)
		if a.For != "" {
			fmt.Fprintf(&b, "        for: %s\n", a.For)
		}
		fmt.Fprintf(&b, "        labels:\n          severity: %s\n        annotations:\n          summary: %q\n          description: %q\n          runbook_url: %s\n",
			a.Severity, a.Summary, a.Description, a.URL())
	}
	return b.String()
}

// Runbooks is the part of docs/runbooks.md that has a section for each alert.
func Runbooks() string {
	var b strings.Builder
	for _, a := range Alerts() {
		wait := "at once"
		if a.For != "" {
			wait = "after " + a.For
		}
		fmt.Fprintf(&b, "## %s\n\n%s, %s, when\n\n    %s\n\n%s\n\n", a.Name, a.Severity, wait, a.Expr, strings.TrimSpace(a.Runbook))
	}
	return b.String()
}

// AlertTable is the list of alerts in docs/monitoring.md.
func AlertTable() string {
	var b strings.Builder
	b.WriteString("| alert | severity | what it says |\n| --- | --- | --- |\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "| [%s](runbooks.md#%s) | %s | %s |\n", a.Name, strings.ToLower(a.Name), a.Severity, plain(a.Summary))
	}
	return b.String()
}

// plain is an annotation without the braces of its template.
func plain(s string) string {
	s = strings.ReplaceAll(s, "{{ $labels.", "*")
	return strings.ReplaceAll(s, " }}", "*")
}
