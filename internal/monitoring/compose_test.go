package monitoring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestCompose reads packaging/compose.yml, which needs an engine to run: what it mounts is
// in the tree, and each file stands where the other side looks for it.
func TestCompose(t *testing.T) {
	var c struct {
		Services map[string]struct {
			Image            string
			Command, Volumes []string
			DependsOn        []string `yaml:"depends_on"`
			Environment      map[string]string
		}
		Volumes map[string]any
	}
	parse(t, file("packaging", "compose.yml"), &c)
	if len(c.Services) != 2 {
		t.Fatalf("services %v", c.Services)
	}
	inside := map[string]string{} // what containers see, and where it comes from
	for name, s := range c.Services {
		if _, tag, ok := strings.Cut(s.Image, ":"); !ok || tag == "latest" {
			t.Errorf("%s: image %s has no version", name, s.Image)
		}
		for _, v := range s.Volumes {
			from, to, _ := strings.Cut(v, ":")
			to, _, _ = strings.Cut(to, ":")
			if !strings.HasPrefix(from, "./") {
				if _, ok := c.Volumes[from]; !ok {
					t.Errorf("%s: there is no volume %s", name, from)
				}
				continue
			}
			if _, err := os.Stat(file("packaging", from)); err != nil {
				t.Error(err)
			}
			inside[to] = file("packaging", from)
		}
		for _, d := range s.DependsOn {
			if _, ok := c.Services[d]; !ok {
				t.Errorf("%s needs %s", name, d)
			}
		}
	}
	at := func(path string) string {
		t.Helper()
		for to, from := range inside {
			if rest, ok := strings.CutPrefix(path, to); ok && (rest == "" || rest[0] == '/') {
				if _, err := os.Stat(from + rest); err != nil {
					t.Error(err)
				}
				return from + rest
			}
		}
		t.Errorf("no container has %s", path)
		return ""
	}
	at(strings.TrimPrefix(c.Services["prometheus"].Command[0], "--config.file="))
	at(c.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
	var p struct {
		Providers []struct{ Options struct{ Path string } }
	}
	parse(t, at("/etc/grafana/provisioning/dashboards/rdsd.yml"), &p)
	if l, _ := filepath.Glob(at(p.Providers[0].Options.Path) + "/*.json"); len(l) != len(Dashboards()) {
		t.Errorf("Grafana finds %v", l)
	}
	var s struct{ Datasources []struct{ Type, URL string } }
	parse(t, at("/etc/grafana/provisioning/datasources/prometheus.yml"), &s)
	if len(s.Datasources) != 1 || !strings.Contains(strings.Join(c.Services["prometheus"].Command, " "), "--web.listen-address="+strings.TrimPrefix(s.Datasources[0].URL, "http://")) {
		t.Errorf("Grafana asks %+v", s.Datasources)
	}
	promtool(t, "", "check", "config", file("packaging", "prometheus", "prometheus.yml"))
}

// parse reads a file of YAML.
func parse(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
