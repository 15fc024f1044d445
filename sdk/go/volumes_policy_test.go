package rdsd_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// A path policy as somebody would add it: a file, and a line of the table.
const (
	policyFile = `package rtrs

// firstPath takes the path that was added first, of those that are connected.
type firstPath struct{}

func newFirstPath() chooser { return firstPath{} }

func (firstPath) choose(paths []*ClientPath) *ClientPath {
	for _, p := range paths {
		if p.state == Connected {
			return p
		}
	}
	return nil
}
`
	policyLine = `	{PolicyInfo{"first-path", "fp", "", "the first that is connected"}, newFirstPath},` + "\n"
)

// withPolicy builds an rdsd that has that policy.
func withPolicy(t *testing.T) (bin string) {
	dir := t.TempDir()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/rdsd/rdsd/rtrs").Output()
	if err != nil {
		t.Fatal(err)
	}
	room := strings.TrimSpace(string(out))
	table, err := os.ReadFile(filepath.Join(room, "policy.go"))
	if err != nil {
		t.Fatal(err)
	}
	last := strings.Index(string(table), "\tMinLatency:")
	if last < 0 {
		t.Fatal("the table of rtrs/policy.go has no line of MinLatency")
	}
	end := last + strings.Index(string(table[last:]), "\n") + 1
	replace := map[string]string{}
	for name, text := range map[string]string{"policy.go": string(table[:end]) + policyLine + string(table[end:]), "policy_firstpath.go": policyFile} {
		replace[filepath.Join(room, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(dir, "rdsd")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "github.com/rdsd/rdsd/rdsd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// TestAFurtherPolicyIsReached: a policy that only rtrs knows is the default of a
// daemon that is configured so, is asked for by its short form through the SDK and
// by a command, and is shown by its name.
func TestAFurtherPolicyIsReached(t *testing.T) {
	bin := withPolicy(t)
	t.Setenv("RDSD_BIN", bin)
	t.Setenv("RDSD_VOLUMES_POLICY", "fp")
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 60*time.Second)
	nearVol := near.Dial().Volumes()
	if _, err := far.Dial().Volumes().Export(ctx, rdsd.ExportSpec{Name: "disk", Kind: rdsd.KindMemory, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	m, err := nearVol.Map(ctx, rdsd.MapSpec{Node: far.Addr.String(), Name: "disk", Session: "s"})
	if err != nil || m.Policy != "first-path" {
		t.Fatalf("mapped %+v, %v", m, err)
	}
	is := func(want rdsd.VolumePolicy) {
		t.Helper()
		if s, err := nearVol.Sessions(ctx); err != nil || len(s) != 1 || s[0].Policy != want {
			t.Errorf("sessions %+v, %v; want the policy %s", s, err, want)
		}
	}
	if err := nearVol.SetPolicy(ctx, "s", rdsd.PolicyRoundRobin); err != nil {
		t.Error(err)
	}
	is(rdsd.PolicyRoundRobin)
	if err := nearVol.SetPolicy(ctx, "s", "fp"); err != nil {
		t.Error(err)
	}
	is("first-path")
	if err := nearVol.SetPolicy(ctx, "s", "mi"); err != nil {
		t.Error(err)
	}
	out, err := exec.CommandContext(ctx, bin, "--socket", near.Socket, "volume", "sessions", "policy", "s", "fp").CombinedOutput()
	if err != nil || string(out) != "s uses first-path\n" {
		t.Errorf("%q, %v", out, err)
	}
	is("first-path")
}
