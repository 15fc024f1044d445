package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A dashboard is written as Grafana's classic JSON (schemaVersion 39), which Grafana 10 to
// 13 import. Panels stand in rows of 24 columns, in the order of the table.

// Dashboard is one dashboard.
type Dashboard struct {
	UID, Title, Description string
	Rows                    []Row
}

// Row is a heading with panels below it.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one picture. Its width is in columns.
type Panel struct {
	Kind        string // stat, timeseries, table
	Title       string
	Description string
	Unit        string
	Width       int
	Queries     []Query
	Columns     []string // of a table, in the order of the queries; "": only its labels are shown
	Bad         bool     // of a stat: anything but 0 is red
	Names       bool     // of a stat: the legend is shown and not the value
}

// Query is one expression of a panel. $sel in it stands for the matchers that the
// variables of a dashboard make.
type Query struct {
	Expr, Legend string
}

const selector = `job=~"$job",instance=~"$instance"`

// PromQL is the expression with the matchers in place.
func (q *Query) PromQL() string { return strings.ReplaceAll(q.Expr, "$sel", selector) }

func q(expr, legend string) Query { return Query{Expr: expr, Legend: legend} }

func stat(title, unit, description string, l ...Query) Panel {
	return Panel{Kind: "stat", Title: title, Unit: unit, Description: description, Width: 4, Queries: l}
}

func graph(title, unit, description string, l ...Query) Panel {
	return Panel{Kind: "timeseries", Title: title, Unit: unit, Description: description, Width: 8, Queries: l}
}

func table(title, description string, l ...Query) Panel {
	return Panel{Kind: "table", Title: title, Unit: "short", Description: description, Width: 24, Queries: l}
}

func (p Panel) wide(columns int) Panel { p.Width = columns; return p }

func (p Panel) columns(names ...string) Panel { p.Columns = names; return p }
func (p Panel) bad() Panel                    { p.Bad = true; return p }
func (p Panel) names() Panel                  { p.Names = true; return p }

// column is what Grafana calls the values of query i of a table.
func (p *Panel) column(i int) string {
	if len(p.Queries) == 1 {
		return "Value"
	}
	return "Value #" + refID(i)
}

func refID(i int) string { return string(rune('A' + i)) }

// object is a JSON object.
type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// JSON is the file of the dashboard.
func (d *Dashboard) JSON() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(d.object()); err != nil {
		panic(fmt.Sprintf("monitoring: dashboard %s: %v", d.UID, err))
	}
	return b.Bytes()
}

func (d *Dashboard) object() object {
	id, y := 0, 0
	var panels []object
	for _, r := range d.Rows {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": r.Title, "collapsed": false, "panels": []any{},
			"gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, high := 0, 0
		for _, p := range r.Panels {
			id++
			h := map[string]int{"stat": 4, "timeseries": 8, "table": 9}[p.Kind]
			if x+p.Width > 24 {
				x, y, high = 0, y+high, 0
			}
			panels = append(panels, p.object(id, object{"x": x, "y": y, "w": p.Width, "h": h}))
			x, high = x+p.Width, max(high, h)
		}
		y += high
	}
	return object{
		"id": nil, "uid": d.UID, "title": d.Title, "description": d.Description, "tags": []string{"rdsd"},
		"schemaVersion": 39, "version": 1, "editable": false, "graphTooltip": 1, "refresh": "30s", "timezone": "",
		"time":        object{"from": "now-1h", "to": "now"},
		"timepicker":  object{},
		"templating":  object{"list": variables()},
		"annotations": object{"list": []object{restarts()}},
		"links": []object{{"type": "dashboards", "tags": []string{"rdsd"}, "title": "rdsd", "asDropdown": false, "includeVars": true, "keepTime": true,
			"targetBlank": false, "icon": "external link", "tooltip": "", "url": ""}},
		"panels": panels,
	}
}

// restarts marks the starts of daemons on every graph.
func restarts() object {
	return object{"name": "Restarts", "datasource": source, "enable": true, "hide": false, "iconColor": "orange",
		"expr": (&Query{Expr: restartsExpr}).PromQL(), "titleFormat": "rdsd started", "textFormat": "{{instance}}", "step": "60s"}
}

const restartsExpr = `changes(process_start_time_seconds{$sel}[$__rate_interval]) > 0 and on (job, instance) rdsd_build_info{$sel}`

func variables() []object {
	query := func(name, label, expr string) object {
		return object{"name": name, "label": label, "type": "query", "datasource": source, "definition": expr,
			"query":   object{"query": expr, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 1},
			"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".+", "hide": 0, "regex": "", "skipUrlSync": false,
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}}, "options": []any{}}
	}
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "multi": false, "includeAll": false,
			"hide": 0, "regex": "", "skipUrlSync": false, "current": object{}, "options": []any{}},
		query("job", "Job", `label_values(rdsd_build_info, job)`),
		query("instance", "Instance", `label_values(rdsd_build_info{job=~"$job"}, instance)`),
	}
}

func (p *Panel) object(id int, pos object) object {
	var targets []object
	for i := range p.Queries {
		k := &p.Queries[i]
		t := object{"refId": refID(i), "datasource": source, "expr": k.PromQL(), "legendFormat": k.Legend, "range": true, "instant": false}
		if p.Kind != "timeseries" {
			t["range"], t["instant"] = false, true
		}
		if p.Kind == "table" {
			t["format"] = "table"
		}
		targets = append(targets, t)
	}
	defaults := object{"unit": p.Unit}
	o := object{"id": id, "type": p.Kind, "title": p.Title, "description": p.Description, "datasource": source, "gridPos": pos,
		"fieldConfig": object{"defaults": defaults, "overrides": []any{}}, "targets": targets}
	switch p.Kind {
	case "stat":
		color, text := "none", "auto"
		if p.Bad {
			color = "value"
			defaults["thresholds"] = object{"mode": "absolute", "steps": []object{{"color": "green", "value": nil}, {"color": "red", "value": 1}}}
		}
		if p.Names {
			text = "name"
		}
		o["options"] = object{"colorMode": color, "graphMode": "none", "justifyMode": "auto", "textMode": text,
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}}
	case "timeseries":
		defaults["custom"] = object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false}
		defaults["min"] = 0 // a line that rises a little is not to look like one that doubles
		o["options"] = object{"legend": object{"displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull", "max"}},
			"tooltip": object{"mode": "multi", "sort": "desc"}}
	case "table":
		hide, names := object{"Time": true, "__name__": true}, object{}
		for i, n := range p.Columns {
			if n == "" {
				hide[p.column(i)] = true
			} else {
				names[p.column(i)] = n
			}
		}
		o["transformations"] = []object{{"id": "merge", "options": object{}},
			{"id": "organize", "options": object{"excludeByName": hide, "renameByName": names}}}
		o["options"] = object{"showHeader": true}
		o["fieldConfig"] = object{"defaults": defaults, "overrides": p.columnUnits()}
	}
	return o
}

// columnUnits gives the columns of a table the units that their names end in.
func (p *Panel) columnUnits() []object {
	l := []object{}
	for _, name := range p.Columns {
		for _, u := range [][2]string{{"age", "s"}, {"uptime", "s"}, {"round trip", "s"}, {"bytes", "bytes"}} {
			if strings.HasSuffix(name, u[0]) {
				l = append(l, object{"matcher": object{"id": "byName", "options": name}, "properties": []object{{"id": "unit", "value": u[1]}}})
			}
		}
	}
	return l
}

// Dashboards are all of them; the file of one is its UID with .json added.
func Dashboards() []Dashboard {
	return []Dashboard{cluster(), node(), congestion(), volumes()}
}
