package tidy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A lane carries datagrams to a peer, a path requests of a session of volumes
// (docs/architecture.md, "Words"). The rooms of the one have no word for the other, in
// names, comments and texts, tests included; so a sentence with "path" in it is about
// volumes, wherever it stands.
var terms = []struct {
	rooms []string
	no    *regexp.Regexp // in lower case, of one word of a name
	say   string
	but   map[string]string // a word, or a phrase with it, and why it is right there
}{
	{
		[]string{"conn", "rds", "cong", "wire", "node/datagram"}, regexp.MustCompile(`path`), "lane",
		map[string]string{
			"path/filepath":             "the package of the library",
			"filepath":                  "names of files",
			"LedgerPath":                "the name of a file",
			"LookPath":                  "the name of a file",
			"hot path":                  "way of the code that is gone often",
			"NPaths":                    "RDS_EXTHDR_NPATHS, and what a kernel says in it",
			"ExtNPaths":                 "the same",
			"NPATHS":                    "the same",
			"npaths":                    "the same in scripts",
			"rds_conn_path":             "the kernel's struct",
			"rds_tcp_conn_path_connect": "the kernel's function",
			"RDS_MPATH_WORKERS":         "the kernel's constant",
			"RDS_MPATH_HASH":            "the kernel's macro",
			`"path", s.Index`:           "the key of log lines, which programs know",
			`level, "path"`:             "the log line itself, likewise",
		},
	},
	{
		[]string{"wire/rtrs", "wire/rnbd", "rtrs", "rnbd", "node/volume"}, regexp.MustCompile(`^n?lanes?$`), "path", nil,
	},
}

// parts cuts a name into its words: NPathsUp, n_paths_up.
var parts = regexp.MustCompile(`[A-Z]*[a-z]+|[A-Z]+`)

// wrongTerms are the lines of text that have a word no matches, with the number of the
// line; an exception that is met is noted in used.
func wrongTerms(text string, no *regexp.Regexp, but map[string]string, used map[string]bool) (bad map[int]string) {
	bad = map[int]string{}
	// The longest first: one may be part of another.
	exceptions := slices.SortedFunc(maps.Keys(but), func(a, b string) int { return len(b) - len(a) })
	var at []*regexp.Regexp
	for _, e := range exceptions {
		// A whole word or phrase, not the end of a longer one.
		at = append(at, regexp.MustCompile(`(^|\W)`+regexp.QuoteMeta(e)+`(\W|$)`))
	}
	for i, line := range strings.Split(text, "\n") {
		rest := line
		for k, e := range exceptions {
			for strings.Contains(rest, e) && at[k].MatchString(rest) {
				used[e] = true
				rest = at[k].ReplaceAllString(rest, "$1$2")
			}
		}
		for _, w := range parts.FindAllString(rest, -1) {
			if no.MatchString(strings.ToLower(w)) {
				bad[i+1] = strings.TrimSpace(line)
			}
		}
	}
	return bad
}

// TestOneWordForOneThing keeps lanes and paths apart.
func TestOneWordForOneThing(t *testing.T) {
	all := sources(t)
	for _, k := range terms {
		used, seen := map[string]bool{}, map[string]bool{}
		for _, s := range all {
			for _, r := range k.rooms {
				if s.dir != r {
					continue
				}
				seen[r] = true
				for n, line := range wrongTerms(string(s.text), k.no, k.but, used) {
					t.Errorf("%s:%d: the word here is %s: %s", s.path, n, k.say, line)
				}
			}
		}
		for _, r := range k.rooms {
			if !seen[r] {
				t.Errorf("there is no room %s", r)
			}
		}
		for e, why := range k.but {
			if !used[e] {
				t.Errorf("%q (%s) is an exception that nobody needs", e, why)
			}
		}
	}
	// The check itself.
	for text, n := range map[string]int{
		"the path is up": 1, "npathsUp := 1": 1, "dropPath()": 1, "a\nPaths(f)\n": 1, "errPathGone": 1, "becomePath0": 1,
		"filepath.Join": 0, `"path/filepath"`: 0, "the hot path, and npaths=1": 0, "the hot paths": 1, "lane": 0, "x.NPaths": 0, "c.NPathsUp": 1,
	} {
		if bad := wrongTerms(text, terms[0].no, terms[0].but, map[string]bool{}); len(bad) != n {
			t.Errorf("%q: %v", text, bad)
		}
	}
	for text, n := range map[string]int{"r.Lane": 1, "nlanes": 1, "a lane": 1, "the data plane": 0, "laneOf": 1, "path": 0} {
		if bad := wrongTerms(text, terms[1].no, nil, map[string]bool{}); len(bad) != n {
			t.Errorf("%q: %v", text, bad)
		}
	}
}
