package cli

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/json anew")

// jsonCommands are the commands that show something of a daemon, with the file of
// testdata/json that has what they print with --json.
var jsonCommands = []struct{ file, args string }{
	{"status", "status"},
	{"peers", "peers"},
	{"peers-drop", "peers drop 10.0.0.2"},
	{"sockets", "sockets"},
	{"queue", "queue"},
	{"counters", "counters"},
	{"congestion", "congestion"},
	{"congestion-watch", "congestion --watch"},
	{"congestion-history", "congestion --history"},
	{"info", "info"},
	{"errors", "errors"},
	{"queue-summary", "queue --summary"},
	{"check", "check --format json"},
	{"config", "config show --running"},
	{"config-check", "config check"},
	{"config-check-wrong", "config check --port x --lanes 0"},
	{"serve-check", "serve --check"},
	{"sockets-close", "sockets close 10.0.0.1:4000"},
	{"ping", "ping 10.0.0.2 -c 1 -i 0s"},
	{"cancel", "cancel --from 10.0.0.1:4000 --to 10.0.0.3:0"},
	{"volume-ls", "volume ls"},
	{"volume-export", "volume show disk"},
	{"volume-mapping", "volume show v1"},
	{"volume-map", "volume map store:two --path 10.0.0.1,10.0.0.7 --policy rr --on-loss error --loss-timeout 3s"},
	{"volume-info", "volume info store:disk"},
	{"volume-sessions", "volume sessions"},
	{"volume-paths", "volume paths"},
	{"volume-unexport", "volume unexport golden"},
	{"volume-force-close", "volume force-close disk linux"},
	{"volume-unmap", "volume unmap v1 --force"},
	{"volume-policy", "volume sessions policy app-store rr"},
	{"volume-paths-add", "volume paths add app-store 10.1.0.1,10.1.0.7"},
	{"volume-events", "volume events"},
	{"volume-check", "volume check"},
}

// TestJSON holds what --json prints: its names and its form are an interface that
// scripts depend on. A key that goes or changes breaks them; a further one does not.
func TestJSON(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "rdsd.sock")
	stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// Times are those of this machine's zone, and sockets lie where the test put them.
	moment := regexp.MustCompile(`("time": ?)"[^"]*"`)
	for _, c := range jsonCommands {
		var out, errw bytes.Buffer
		args := append(strings.Fields(c.args), "--json", "--socket", socket)
		run(context.Background(), args, strings.NewReader(""), &out, &errw)
		if out.Len() == 0 {
			t.Errorf("rdsd %s --json prints nothing; %s", c.args, &errw)
		}
		got := strings.ReplaceAll(moment.ReplaceAllString(out.String(), `$1"TIME"`), dir, "DIR")
		file := filepath.Join("testdata", "json", c.file+".json")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("rdsd %s --json prints\n%s\nwant (%s)\n%s\n%s", c.args, got, file, want, &errw)
		}
	}
}
