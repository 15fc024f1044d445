package node

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/operations.md")

// The tables of docs/operations.md are those of the program; -update rewrites them.
func TestOperationsTables(t *testing.T) {
	path := filepath.Join("..", "docs", "operations.md")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for name, table := range map[string]string{"keys": keyTable(), "kernel counters": coreTable(false), "own counters": coreTable(true), "reloadable keys": reloadList()} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, ok1 := strings.Cut(page, begin)
		old, after, ok2 := strings.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Fatalf("%s has no place for %s", path, name)
		}
		if old != table && !*update {
			t.Errorf("%s: the table of %s is out of date; run go test ./node -run TestOperationsTables -update", path, name)
		}
		page = before + begin + table + end + after
	}
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
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
