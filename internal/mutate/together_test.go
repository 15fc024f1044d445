package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sampleTree is a program whose rules can be broken: it says what it would do.
const sampleTree = `package main

import "fmt"

type box struct{ n int }

// add adds what it is given.
func (b *box) add(l ...int) (sum int) {
	for _, n := range l {
		sum += n
	}
	b.n = sum
	return
}

func (b box) show() {
	fmt.Println(b.n)
}

func unnamed(int) int { return 1 }

const limit = 3

func main() {
	b := &box{}
	b.add(1, 2)
	b.show()
}
`

// samples are patches of sampleTree, each with what the program says then, or "" where
// the patch has to be built by itself.
var samples = map[string]struct{ old, now, says string }{
	"Product":   {"\t\tsum += n\n", "\t\tsum = 5 * n\n", "10"},
	"Forgotten": {"\tb.n = sum\n", "", "0"},
	"Twice":     {"\tfmt.Println(b.n)\n", "\tfmt.Println(b.n, b.n)\n", "3 3"},
	"Another":   {"func unnamed(int) int { return 1 }\n", "func unnamed(int) int { return 2 }\n", ""},
	"Constant":  {"const limit = 3\n", "const limit = 4\n", ""},
	"Head":      {"func (b box) show() {\n", "func (b *box) show() {\n", ""},
	"Added":     {"const limit = 3\n", "const limit = 3\n\nfunc more() {}\n", ""},
}

// TestJoined: one program has many rules, and breaks the one that it is told to, or none.
func TestJoined(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module sample\n\ngo 1.26\n", "main.go": sampleTree} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var patches []*patch
	for name, s := range samples {
		h := hunk{old: strings.SplitAfter(strings.TrimSuffix(s.old, "\n"), "\n"), now: strings.SplitAfter(s.now, "\n")}
		h.old[len(h.old)-1] += "\n"
		patches = append(patches, &patch{name: name, hunks: map[string][]hunk{"main.go": {h}}})
	}
	all, err := joined(root, patches)
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	overlay, err := describe(root, tmp, all.files)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(tmp, "sample")
	if out, err := goTool(root, tmp, "build", "-overlay", overlay, "-o", bin, "."); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, all.files["main.go"])
	}
	says := map[string]string{"": "3", "Unknown": "3"}
	for _, p := range patches {
		s := samples[p.name]
		if all.can[p] != (s.says != "") {
			t.Errorf("%s: in the program: %v", p.name, all.can[p])
		}
		if s.says != "" {
			says[p.name] = s.says
		}
	}
	for rule, want := range says {
		cmd := exec.Command(bin)
		cmd.Env = append(os.Environ(), brokenBy+"="+rule)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %q, %v; want %s", rule, out, err, want)
		}
	}
}

// TestMostRulesAreJoined: what the patches change are bodies of functions, but for a few. One that
// is built by itself takes some seconds of make test.
func TestMostRulesAreJoined(t *testing.T) {
	root, patches := rulesOfTree(t)
	all, err := joined(root, patches)
	if err != nil {
		t.Fatal(err)
	}
	if alone := len(patches) - len(all.can); alone*10 > len(patches) {
		t.Errorf("%d of %d rules are built by themselves", alone, len(patches))
	}
}
