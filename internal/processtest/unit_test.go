package processtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/guard"
)

// readFile reads one of the repository.
func readFile(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// settings are those of a unit file, by section and key.
func settings(text string) map[string][]string {
	unit, section := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		if k, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			unit[section+k] = append(unit[section+k], v)
		}
	}
	return unit
}

// TestUnit: the unit file, its documentation and the program agree on what is started
// again and what is not.
func TestUnit(t *testing.T) {
	unit := settings(readFile(t, "packaging", "rdsd.service"))
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
	page := readFile(t, "docs", "operations.md")
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

// TestKernelDeviceRights: who keeps of the rights for volumes what kernel devices need has all of it: what attaches
// a device, what shows whether it is mounted, and what has it unmounted before the daemon stops.
func TestKernelDeviceRights(t *testing.T) {
	paragraphs := strings.Split(readFile(t, "packaging", "volumes.conf"), "\n\n")
	i := slices.IndexFunc(paragraphs, func(p string) bool { return strings.HasPrefix(p, "# Volumes are mapped as /dev/nbdN") })
	if i < 0 {
		t.Fatal("packaging/volumes.conf has no paragraph for kernel devices")
	}
	has := settings("[Service]\n" + paragraphs[i])
	for key, want := range map[string]string{
		"[Unit]Wants":                    "remote-fs-pre.target",
		"[Unit]Before":                   "remote-fs-pre.target",
		"[Service]PrivateDevices":        "no",
		"[Service]DevicePolicy":          "closed",
		"[Service]DeviceAllow":           "block-nbd rw",
		"[Service]SupplementaryGroups":   "disk",
		"[Service]CapabilityBoundingSet": "CAP_SYS_ADMIN",
		"[Service]AmbientCapabilities":   "CAP_SYS_ADMIN",
	} {
		if got := strings.Join(has[key], " "); got != want {
			t.Errorf("the paragraph for kernel devices has %s %q, want %q", key, got, want)
		}
	}
}

// TestExamplesAreWritable: a path that the documents give a volume of a file is one that the drop-in for volumes lets
// the daemon write to.
func TestExamplesAreWritable(t *testing.T) {
	var dirs []string
	for _, d := range settings(readFile(t, "packaging", "volumes.conf"))["[Service]ReadWritePaths"] {
		dirs = append(dirs, strings.Fields(d)...)
	}
	if len(dirs) == 0 {
		t.Fatal("packaging/volumes.conf lets the daemon write nowhere")
	}
	example := regexp.MustCompile(`(?:volume export \S+ (?:--create )?|path = ")(/[^\s"]+)`)
	for _, page := range []string{"volumes.md", "operations.md", "rdsd.example.toml", "cli/rdsd_volume.md", "cli/rdsd_volume_export.md"} {
		found := example.FindAllStringSubmatch(readFile(t, "docs", page), -1)
		if len(found) == 0 {
			t.Errorf("docs/%s has no example of a volume's path", page)
		}
		for _, m := range found {
			below := func(dir string) bool { return strings.HasPrefix(m[1], dir+"/") }
			if !strings.HasPrefix(m[1], "/dev/") && !slices.ContainsFunc(dirs, below) {
				t.Errorf("docs/%s has %s, which is not below %v", page, m[1], dirs)
			}
		}
	}
}
