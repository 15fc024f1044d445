package node

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/operations.md")

// The tables of docs/operations.md are those of the program; -update rewrites them.
func TestOperationsTables(t *testing.T) {
	doctable.Check(t, "../docs/operations.md", "./node -run TestOperationsTables -update", *update,
		doctable.Table{Name: "keys", Text: keyTable()}, doctable.Table{Name: "kernel counters", Text: coreTable(false)},
		doctable.Table{Name: "own counters", Text: coreTable(true)}, doctable.Table{Name: "reloadable keys", Text: reloadList()})
}

func keyTable() string {
	var b strings.Builder
	b.WriteString("| key | default | variable | flag | meaning |\n| --- | --- | --- | --- | --- |\n")
	quote := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	def := config.Default()
	for _, k := range config.Keys() {
		flag := ""
		if k.Flag != "" {
			flag = "--" + k.Flag
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.Name, quote(k.Value(def)), quote(k.Env), quote(flag), k.Usage)
	}
	return b.String()
}

// reloadList names the keys that Node.Reload takes over, in lines of the page's width.
func reloadList() string {
	b, width := strings.Builder{}, 0
	b.WriteString("Reloaded are")
	width = b.Len()
	var names []string
	for _, k := range config.Keys() {
		if k.Reload {
			names = append(names, "`"+k.Name+"`")
		}
	}
	names = append(names, "`[[ports]]`", "`[[peers]]`")
	for i, n := range names {
		end := ","
		switch i {
		case len(names) - 1:
			n, end = "and "+n, "."
		case len(names) - 2:
			end = ""
		}
		if width+1+len(n+end) > 98 {
			b.WriteString("\n" + n + end)
			width = len(n + end)
			continue
		}
		b.WriteString(" " + n + end)
		width += 1 + len(n+end)
	}
	return b.String() + "\n"
}

func coreTable(own bool) string {
	var b strings.Builder
	b.WriteString("| metric | counts |\n| --- | --- |\n")
	prefix := "rds_"
	if own {
		prefix = "rdsd_"
	}
	for _, f := range stats.Fields {
		if f.Own == own && !f.Kernel() {
			fmt.Fprintf(&b, "| `%s%s_total` | %s |\n", prefix, f.Name, f.Help)
		}
	}
	if own {
		for _, d := range base.CounterTable.Descs() {
			fmt.Fprintf(&b, "| `rdsd_%s_total` | %s |\n", d.Name, d.Help)
		}
	}
	return b.String()
}
