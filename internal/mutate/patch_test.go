package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/rules.md")

// rulesOfTree returns the root of the tree, and the rules that are broken there by hand.
func rulesOfTree(t *testing.T) (root string, patches []*patch) {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	patches, err = readPatches(root)
	if err != nil {
		t.Fatal(err)
	}
	return root, patches
}

// TestRulesApply: every patch still finds its lines, in worlds that there are. That
// what it makes compiles is TestRulesCompile's to show, and that it is noticed make mutants'.
func TestRulesApply(t *testing.T) {
	root, patches := rulesOfTree(t)
	if len(patches) < 55 {
		t.Errorf("only %d rules", len(patches))
	}
	for _, p := range patches {
		edited, err := p.apply(root)
		if err != nil {
			t.Error(err)
		}
		for file, text := range edited {
			if b, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(b) == text {
				t.Errorf("%s changes nothing in %s (%v)", p.name, file, err)
			}
		}
		for _, w := range p.worlds {
			if worlds[w].dir == "" {
				t.Errorf("%s: there is no world %q", p.name, w)
			}
		}
	}
}

// TestRulesAreListed: docs/rules.md is what the patches say, with what noticed each.
func TestRulesAreListed(t *testing.T) {
	root, patches := rulesOfTree(t)
	var b strings.Builder
	b.WriteString("# Rules broken on purpose\n\nAppendix of [testing.md](testing.md#mutants), written by `go test ./internal/mutate -run TestRules -update` from the patches of\n" +
		"`internal/mutate/testdata/rules`. What noticed a rule is what `make mutants` showed when somebody looked last; worlds change, and seeds with them.\n\n" +
		"| rule | what the patch does | worlds | noticed by |\n|---|---|---|---|\n")
	for _, p := range patches {
		if p.seen == "" {
			t.Errorf("%s does not say what noticed it (Noticed:)", p.name)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.name, strings.TrimSuffix(p.breaks, "."), strings.Join(p.worlds, ", "), p.seen)
	}
	file := filepath.Join(root, "docs", "rules.md")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if old, err := os.ReadFile(file); err != nil || string(old) != b.String() {
		t.Errorf("docs/rules.md is out of date (%v); run go test ./internal/mutate -run TestRules -update", err)
	}
}

const samplePatch = `Breaks: a step is taken twice.
Worlds: sessions

diff --git a/f.go b/f.go
index 72ee4c0..1f72fb5 100644
--- a/f.go
+++ b/f.go
@@ -2,2 +2,3 @@ func f() {
 	a()
+	step()
 	step()
@@ -9,1 +10,1 @@
-	b()
+	c()
`

func TestPatch(t *testing.T) {
	root := t.TempDir()
	p, err := parsePatch("Twice", samplePatch)
	if err != nil || p.name != "Twice" || p.breaks != "a step is taken twice." || len(p.worlds) != 1 || len(p.hunks["f.go"]) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, c := range []struct{ what, file, want, fault string }{
		{"where the diff says", "func f() {\n\ta()\n\tstep()\n}\n\n\tb()\n", "func f() {\n\ta()\n\tstep()\n\tstep()\n}\n\n\tc()\n", ""},
		{"lines that moved", "\tb()\n\n\n\n\ta()\n\tstep()\n", "\tc()\n\n\n\n\ta()\n\tstep()\n\tstep()\n", ""},
		{"lines that changed", "\ta()\n\tstep(1)\n\tb()\n", "", "no longer applies: its lines stand in f.go 0 times"},
		{"lines that stand twice", "\ta()\n\tstep()\n\ta()\n\tstep()\n\tb()\n", "", "2 times, not once"},
		{"a file that ends before", "\ta()", "", "0 times"},
	} {
		if err := os.WriteFile(filepath.Join(root, "f.go"), []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := p.apply(root)
		if c.fault == "" && (err != nil || got["f.go"] != c.want) {
			t.Errorf("%s: %q, %v", c.what, got["f.go"], err)
		}
		if c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	for what, text := range map[string]string{
		"no reason":      strings.Replace(samplePatch, "Breaks: a step is taken twice.\n", "", 1),
		"no world":       strings.Replace(samplePatch, "Worlds: sessions\n", "", 1),
		"no change":      "Breaks: x.\nWorlds: sessions\n",
		"something else": samplePatch + "rest\n",
	} {
		if _, err := parsePatch("x", text); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := (&patch{name: "x", hunks: map[string][]hunk{"gone.go": {{}}}}).apply(root); err == nil {
		t.Error("a file that is not there: no error")
	}
}

// TestLastSeed: the seed that readers are told is the one that a search begins with.
func TestLastSeed(t *testing.T) {
	for _, c := range []struct {
		worlds, seen, world, want string
	}{
		{"volumes sessions", "volumes: B4, seed 1000271; sessions: ghost 94", "volumes", "1000271"},
		{"volumes sessions", "volumes: B4, seed 1000271; sessions: ghost 94", "sessions", ""},
		{"volumes sessions", "volumes: B3; sessions: B2, seed 32", "sessions", "32"},
		{"datagrams", "D12, seed 24", "datagrams", "24"},
		{"queuepairs", "seed 4, a2 is neither idle nor dead", "queuepairs", "4"},
		{"sessions", "B3: a write after it completed", "sessions", ""},
		{"sessions", "B3: seed of evil", "sessions", ""},
		{"datagrams", "D12, seed 24", "volumes", ""},
	} {
		p := &patch{worlds: strings.Fields(c.worlds), seen: c.seen}
		if got := p.lastSeed(c.world); got != c.want {
			t.Errorf("%q in %s: %q, want %q", c.seen, c.world, got, c.want)
		}
	}
}
