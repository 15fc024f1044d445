package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// hunk replaces some lines of a file by others, those around them included.
type hunk struct {
	old, now []string
}

// patch is a rule of the protocol, broken.
type patch struct {
	name   string            // of the file: "NoFence"
	breaks string            // what goes wrong
	worlds []string          // in which it has to be noticed
	seen   string            // what noticed it when somebody looked last: "volumes: B4, seed 1000271; sessions: ghost 94"
	hunks  map[string][]hunk // by file of the product
}

// readPatches reads every patch of internal/mutate/testdata/rules.
func readPatches(root string) ([]*patch, error) {
	names, err := filepath.Glob(filepath.Join(root, "internal/mutate/testdata/rules/*/*.patch"))
	if err != nil {
		return nil, err
	}
	var all []*patch
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			return nil, err
		}
		p, err := parsePatch(strings.TrimSuffix(filepath.Base(n), ".patch"), string(b))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// parsePatch reads "Breaks:", "Worlds:" and "Noticed:" and a unified diff behind them. The
// line numbers of the diff are not read: its lines say where it belongs.
func parsePatch(name, text string) (*patch, error) {
	p := &patch{name: name, hunks: map[string][]hunk{}}
	file := ""
	var h *hunk
	for _, line := range strings.SplitAfter(text, "\n") {
		mark, rest := "", ""
		if line != "" {
			mark, rest = line[:1], line[1:]
		}
		switch {
		case line == "" || h == nil && line == "\n":
		case file == "" && strings.HasPrefix(line, "Breaks: "):
			p.breaks = strings.TrimSpace(line[len("Breaks: "):])
		case file == "" && strings.HasPrefix(line, "Worlds: "):
			p.worlds = strings.Fields(line[len("Worlds: "):])
		case file == "" && strings.HasPrefix(line, "Noticed: "):
			p.seen = strings.TrimSpace(line[len("Noticed: "):])
		case strings.HasPrefix(line, "diff --git "), strings.HasPrefix(line, "index "), strings.HasPrefix(line, "--- a/"):
			h = nil
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(line[len("+++ b/"):])
		case strings.HasPrefix(line, "@@ ") && file != "":
			p.hunks[file] = append(p.hunks[file], hunk{})
			h = &p.hunks[file][len(p.hunks[file])-1]
		case h != nil && mark == "-":
			h.old = append(h.old, rest)
		case h != nil && mark == "+":
			h.now = append(h.now, rest)
		case h != nil && mark == " ":
			h.old, h.now = append(h.old, rest), append(h.now, rest)
		default:
			return nil, fmt.Errorf("a line that is none of a patch's: %q", line)
		}
	}
	if p.breaks == "" || len(p.worlds) == 0 || len(p.hunks) == 0 {
		return nil, fmt.Errorf("what it breaks, the worlds that have to notice, or the change is missing")
	}
	return p, nil
}

// lastSeed is the seed by which the rule was noticed in a world, "" where none is said.
func (p *patch) lastSeed(world string) string {
	for said := range strings.SplitSeq(p.seen, ";") {
		w, what, ok := strings.Cut(strings.TrimSpace(said), ": ")
		if !ok || w != world {
			if len(p.worlds) > 1 || p.worlds[0] != world {
				continue
			}
			what = said // of the only world, which then need not be named
		}
		if _, seed, ok := strings.Cut(what, "seed "); ok {
			digits, _, _ := strings.Cut(seed, ",")
			if _, err := strconv.ParseInt(digits, 10, 64); err == nil {
				return digits
			}
		}
	}
	return ""
}

// apply returns the files of the tree that p changes, as it leaves them. The lines
// of each hunk have to stand in their file exactly once.
func (p *patch) apply(root string) (map[string]string, error) {
	edited := map[string]string{}
	for file, hunks := range p.hunks {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		lines := strings.SplitAfter(string(b), "\n")
		for _, h := range hunks {
			at := places(lines, h.old)
			if len(at) != 1 {
				return nil, fmt.Errorf("rule %s no longer applies: its lines stand in %s %d times, not once:\n%s", p.name, file, len(at), strings.Join(h.old, ""))
			}
			lines = slices.Concat(lines[:at[0]], h.now, lines[at[0]+len(h.old):])
		}
		edited[file] = strings.Join(lines, "")
	}
	return edited, nil
}

// places are the positions at which part stands in lines.
func places(lines, part []string) (at []int) {
	for i := 0; i+len(part) <= len(lines); i++ {
		if slices.Equal(lines[i:i+len(part)], part) {
			at = append(at, i)
		}
	}
	return at
}
