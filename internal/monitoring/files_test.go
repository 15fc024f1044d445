package monitoring

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

var update = flag.Bool("update", false, "write packaging/grafana, packaging/prometheus and the parts of docs that follow from the tables anew")

var root = filepath.Join("..", "..")

func file(path ...string) string { return filepath.Join(append([]string{root}, path...)...) }

func rulesFile() string { return file("packaging", "prometheus", "rdsd.rules.yml") }

func dashboardFile(d *Dashboard) string { return file("packaging", "grafana", d.UID+".json") }

// TestFiles: what people import is what the tables say; -update writes it.
func TestFiles(t *testing.T) {
	want := map[string]string{
		rulesFile(): Rules(),
		file("packaging", "prometheus", "rdsd.rules.test.yml"): ruleTests(),
	}
	for _, d := range Dashboards() {
		want[dashboardFile(&d)] = string(d.JSON())
	}
	for path, text := range want {
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%s is not what the tables say (%v); run go test ./internal/monitoring -run TestFiles -update", path, err)
		}
	}
	if l, _ := filepath.Glob(file("packaging", "grafana", "*.json")); len(l) != len(Dashboards()) {
		t.Errorf("packaging/grafana has %v", l)
	}
	const command = "./internal/monitoring -run TestFiles -update"
	doctable.Check(t, file("docs", "runbooks.md"), command, *update, doctable.Table{Name: "alerts", Text: Runbooks()})
	doctable.Check(t, file("docs", "monitoring.md"), command, *update, doctable.Table{Name: "alerts", Text: AlertTable()})
}

// TestRunbooks: the address in each alert leads to a section, and what a section points
// to is there.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile(file("docs", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := anchors(string(page))
	seen := map[string]bool{}
	for _, a := range Alerts() {
		_, anchor, ok := strings.Cut(a.URL(), "docs/runbooks.md#")
		if !ok || !have[anchor] {
			t.Errorf("%s: %s leads nowhere", a.Name, a.URL())
		}
		if seen[a.Name] || a.Summary == "" || a.Description == "" || len(strings.TrimSpace(a.Runbook)) < 80 {
			t.Errorf("%s: twice, or without a summary, a description or a runbook", a.Name)
		}
		seen[a.Name] = true
	}
	for _, path := range []string{"runbooks.md", "monitoring.md"} {
		text, err := os.ReadFile(file("docs", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(text), "](")[1:] {
			target, _, _ := strings.Cut(l, ")")
			to, anchor, _ := strings.Cut(target, "#")
			if strings.Contains(to, "://") {
				continue
			}
			if to == "" {
				to = path
			}
			b, err := os.ReadFile(file("docs", to))
			if err != nil || anchor != "" && !anchors(string(b))[anchor] {
				t.Errorf("docs/%s: %s leads nowhere (%v)", path, target, err)
			}
		}
	}
}

// TestRunbookCommands: rdsd knows the commands that somebody is told to run at night.
func TestRunbookCommands(t *testing.T) {
	page, err := os.ReadFile(file("docs", "runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile("`rdsd ([a-z]+(?: [a-z]+)?)`").FindAllStringSubmatch(string(page), -1) {
		if seen[m[1]] {
			continue
		}
		seen[m[1]] = true
		out, err := exec.Command(rdsdtest.Binary(t), append(strings.Fields(m[1]), "--help")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "rdsd "+m[1]) {
			t.Errorf("rdsd %s: %v\n%s", m[1], err, out)
		}
	}
	if len(seen) < 5 {
		t.Errorf("the runbooks name %d commands", len(seen))
	}
}

// anchors are the addresses of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	m := map[string]bool{}
	for l := range strings.Lines(page) {
		if h := strings.TrimLeft(l, "#"); h != l && strings.HasPrefix(h, " ") {
			var b strings.Builder
			for _, r := range strings.ToLower(strings.TrimSpace(h)) {
				switch {
				case r == ' ':
					b.WriteByte('-')
				case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
					b.WriteRune(r)
				}
			}
			m[b.String()] = true
		}
	}
	return m
}
