package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	breakRules = flag.Bool("rules", false, "break the rules of testdata/rules instead, one at a time; the simulators have to notice each")
	oneRule    = flag.String("rule", "", "break this rule alone, or these, separated by commas")
	worldSeeds = flag.Int("seeds", 2000, "how many worlds are asked about a rule")
	keepIn     = flag.String("overlay", "", "with -rule: leave the edited files and overlay.json, for the Go tool's -overlay, in this directory, and run nothing")
)

// world is a simulator that hunts for broken rules.
type world struct {
	dir  string // package of the simulator
	args []string
	// first is the flag for a seed that is tried before all others, where the search is
	// long enough to need it: the one by which the rule was noticed when somebody looked last.
	first string
}

// worlds by the names that patches use: each is a TestHunt.
var worlds = map[string]world{
	"datagrams":   {"internal/simtest", []string{"-sim.hunt=datagrams", "-sim.seeds"}, "-sim.first"},
	"volumes":     {"internal/simtest", []string{"-sim.hunt=volumes", "-sim.seeds"}, "-sim.first"},
	"devices":     {"internal/simtest", []string{"-sim.hunt=devices", "-sim.seeds"}, "-sim.first"},
	"sessions":    {"rtrs", []string{"-rtrs.hunt", "-rtrs.seeds"}, ""},
	"connections": {"roce/cm", []string{"-cm.hunt", "-cm.seeds"}, ""},
	"pairs":       {"shm", []string{"-shm.hunt", "-shm.seeds"}, ""},
	"queuepairs":  {"roce", []string{"-roce.hunt", "-roce.seeds"}, ""},
}

// hunt is a rule to be broken and a world that has to notice.
type hunt struct {
	*patch
	world string
	bin   string // the world's test, where it is built with other rules; "" to build one
	whole string // the world's test that breaks no rule unless it is told to
	said  string // what the world found
	err   error
	built time.Duration // the making of the world's test took
	ran   time.Duration // and its search
}

// runRules breaks every rule that was asked for, -j at once, and prints what
// noticed it. It fails when a patch does not apply any more, does not compile, or
// goes unseen.
func runRules(root string) error {
	patches, err := readPatches(root)
	if err != nil {
		return err
	}
	if *oneRule != "" {
		names := strings.Split(*oneRule, ",")
		patches = slices.DeleteFunc(patches, func(p *patch) bool { return !slices.Contains(names, p.name) })
	}
	if len(patches) == 0 {
		return fmt.Errorf("no rule is named %q", *oneRule)
	}
	if *keepIn != "" {
		return keepOverlay(root, patches)
	}
	var hunts []*hunt
	for _, p := range patches {
		for _, w := range p.worlds {
			if worlds[w].dir == "" {
				return fmt.Errorf("rule %s: there is no world %q", p.name, w)
			}
			hunts = append(hunts, &hunt{patch: p, world: w})
		}
	}
	tmp, err := os.MkdirTemp("", "rules")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	begun := time.Now()
	if err := buildTogether(root, tmp, hunts); err != nil {
		return err
	}
	fmt.Printf("%.0f s for the tests of all rules that are built together\n", time.Since(begun).Seconds())
	huntAll(root, hunts)
	found := 0
	for _, h := range hunts {
		if h.err == nil {
			found++
		}
	}
	fmt.Println(spent(hunts))
	fmt.Printf("%d rules broken, %d found\n", len(hunts), found)
	if found < len(hunts) {
		return fmt.Errorf("%d broken rules were not found", len(hunts)-found)
	}
	return nil
}

// spent says where the time went, for whoever wants less of it.
func spent(hunts []*hunt) string {
	var built, ran time.Duration
	for _, h := range hunts {
		built, ran = built+h.built, ran+h.ran
	}
	slices.SortFunc(hunts, func(a, b *hunt) int { return cmp.Compare(b.ran, a.ran) })
	var most []string
	for _, h := range hunts[:min(len(hunts), 5)] {
		most = append(most, fmt.Sprintf("%s %.1f s", h.name, h.ran.Seconds()))
	}
	return fmt.Sprintf("%.0f s for builds, %.0f s for searches, the longest: %s", built.Seconds(), ran.Seconds(), strings.Join(most, ", "))
}

// huntAll hunts -j at once and prints each result in the order of the rules.
func huntAll(root string, hunts []*hunt) {
	var wg sync.WaitGroup
	done := make([]chan struct{}, len(hunts))
	for i := range done {
		done[i] = make(chan struct{})
	}
	next := make(chan int)
	for range *atOnce {
		wg.Go(func() {
			for i := range next {
				hunts[i].said, hunts[i].err = hunts[i].run(root)
				close(done[i])
			}
		})
	}
	wg.Go(func() {
		for i := range hunts {
			next <- i
		}
		close(next)
	})
	for i, h := range hunts {
		<-done[i]
		if h.err != nil {
			fmt.Printf("NOT FOUND: %s (%s), in %s: %v\n%s\n", h.name, h.breaks, h.world, h.err, h.said)
			continue
		}
		fmt.Printf("| %s | %s | %s |\n", h.name, h.world, h.said)
	}
	wg.Wait()
}

// buildTogether builds the test of each world once, with all the rules that can be in it.
func buildTogether(root, tmp string, hunts []*hunt) error {
	var patches []*patch
	for _, h := range hunts {
		if !slices.Contains(patches, h.patch) {
			patches = append(patches, h.patch)
		}
	}
	all, err := joined(root, patches)
	if err != nil {
		return err
	}
	overlay, err := describe(root, tmp, all.files)
	if err != nil {
		return err
	}
	bins := map[string]string{}
	for _, h := range hunts {
		dir := worlds[h.world].dir
		if !all.can[h.patch] || bins[dir] != "" {
			continue
		}
		bins[dir] = filepath.Join(tmp, strings.ReplaceAll(dir, "/", "-")+".test")
		if out, err := buildWorld(root, tmp, overlay, dir, bins[dir]); err != nil {
			return fmt.Errorf("the rules do not compile together: %w\n%s", err, out)
		}
	}
	for _, h := range hunts {
		h.whole = bins[worlds[h.world].dir]
		if all.can[h.patch] {
			h.bin = h.whole
		}
	}
	return nil
}

// buildWorld builds the test of a package with some files replaced.
func buildWorld(root, tmp, overlay, dir, bin string) (string, error) {
	return goTool(root, tmp, "test", "-c", "-overlay", overlay, "-ldflags=-s -w", "-o", bin, "./"+dir)
}

// run lets the world's test, with the rule broken, look for a seed that shows it.
func (h *hunt) run(root string) (string, error) {
	w, bin, begun := worlds[h.world], h.bin, time.Now()
	if bin == "" {
		tmp, err := os.MkdirTemp("", "rule")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(tmp)
		overlay, err := writeOverlay(root, tmp, []*patch{h.patch})
		if err != nil {
			return "", err
		}
		bin = filepath.Join(tmp, "world.test")
		if out, err := buildWorld(root, tmp, overlay, w.dir, bin); err != nil {
			return out, fmt.Errorf("it does not compile: %w", err)
		}
	}
	h.built = time.Since(begun)
	defer func() { h.ran = time.Since(begun) - h.built }()
	cmd := w.hunt(root, bin, h.name, h.lastSeed(h.world), *worldSeeds)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), err
	}
	// A test that looked for nothing passes too.
	said, ok := strings.CutPrefix(firstLine(out.String()), "found: ")
	if !ok {
		return out.String(), fmt.Errorf("the world did not say what it found")
	}
	return said, h.ownFault(root, said)
}

// hunt is the command by which a world's test looks for a seed that shows something with a rule
// broken, "": none. It tries first before all others, if the world has a flag for that.
func (w *world) hunt(root, bin, rule, first string, seeds int) *exec.Cmd {
	n := len(w.args) - 1
	args := append([]string{"-test.run=^TestHunt$"}, w.args[:n]...)
	if first != "" && w.first != "" {
		args = append(args, w.first+"="+first)
	}
	cmd := exec.CommandContext(life, bin, append(args, w.args[n]+"="+strconv.Itoa(seeds))...)
	cmd.Dir = filepath.Join(root, w.dir)
	cmd.Env = append(os.Environ(), brokenBy+"="+rule)
	return cmd
}

// ownFault fails if the seed that a world has found shows something in the program with all its
// rules, too: then it says nothing about this one.
func (h *hunt) ownFault(root, said string) error {
	w := worlds[h.world]
	var seed int64
	if h.whole == "" || w.first == "" {
		return nil
	}
	if _, err := fmt.Sscanf(said, "seed %d", &seed); err != nil {
		return fmt.Errorf("the world does not name its seed: %q", said)
	}
	out, err := w.hunt(root, h.whole, "", strconv.FormatInt(seed, 10), 0).CombinedOutput()
	switch {
	case err == nil:
		return fmt.Errorf("seed %d shows a fault without the rule being broken: %s", seed, firstLine(string(out)))
	case !bytes.Contains(out, []byte("0 seeds show nothing")):
		return fmt.Errorf("seed %d with no rule broken: %w\n%s", seed, err, out)
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// writeOverlay writes the files that the patches change, and the Go tool's
// description of them, into dir.
func writeOverlay(root, dir string, patches []*patch) (string, error) {
	files := map[string]string{}
	for _, p := range patches {
		edited, err := p.apply(root)
		if err != nil {
			return "", err
		}
		for file, text := range edited {
			if files[file] != "" {
				return "", fmt.Errorf("two of the rules change %s", file)
			}
			files[file] = text
		}
	}
	return describe(root, dir, files)
}

// describe writes files of the tree as they shall be, and the Go tool's description of them, into dir.
func describe(root, dir string, files map[string]string) (string, error) {
	replace := map[string]string{}
	for file, text := range files {
		at := filepath.Join(root, file)
		replace[at] = filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(replace[at], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	o, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, o, 0o600)
}

// keepOverlay leaves an overlay for other commands.
func keepOverlay(root string, patches []*patch) error {
	dir, err := filepath.Abs(*keepIn)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	name, err := writeOverlay(root, dir, patches)
	if err == nil {
		fmt.Println(name)
	}
	return err
}
