package processtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/guard"
)

// TestUnit: the unit file, its documentation and the program agree on what is started
// again and what is not.
func TestUnit(t *testing.T) {
	read := func(path ...string) string {
		b, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	unit := map[string][]string{}
	section := ""
	for line := range strings.Lines(read("packaging", "rdsd.service")) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		if k, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			unit[section+k] = append(unit[section+k], v)
		}
	}
	for key, want := range map[string]string{
		"[Unit]StartLimitIntervalSec":       "0", // no number of quick ends is too many
		"[Service]Restart":                  "always",
		"[Service]RestartPreventExitStatus": fmt.Sprint(config),
		"[Service]ExecReload":               "/bin/kill -HUP $MAINPID",
		"[Service]Type":                     "notify",
	} {
		if got := strings.Join(unit[key], " "); got != want {
			t.Errorf("packaging/rdsd.service has %s %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"[Service]SuccessExitStatus", "[Service]RestartForceExitStatus", "[Unit]StartLimitBurst", "[Service]RestartMaxDelaySec",
		"[Service]ProtectProc", "[Service]ProcSubset"} { // by these the daemon would not know what programs are called
		if unit[key] != nil {
			t.Errorf("packaging/rdsd.service has %s %q", key, unit[key])
		}
	}
	p := run(t, nil, "help", "exit-codes")
	p.exit()
	page := read("docs", "operations.md")
	for _, c := range []struct {
		code int
		name string
	}{{0, "ok"}, {failed, "failed"}, {guard.ExitCode, "internal"}, {config, "config"}} {
		if want := fmt.Sprintf("%5d  %-12s ", c.code, c.name); !strings.Contains(p.out.String(), want) {
			t.Errorf("rdsd help exit-codes has no line %q:\n%s", want, p.out.String())
		}
		if want := fmt.Sprintf("| %d |", c.code); !strings.Contains(page, want) {
			t.Errorf("docs/operations.md has no row %q in its table of exit codes", want)
		}
	}
}
