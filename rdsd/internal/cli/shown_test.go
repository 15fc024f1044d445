package cli

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// notRun are the commands of the documents that this test cannot run, by how they begin,
// with the reason. Their words and flags are checked nevertheless.
var notRun = map[string]string{
	"rdsd serve":            "runs until it is told to stop; testdata/serve.txtar runs it",
	"rdsd demo":             "runs two nodes until it is told to stop; testdata/demo.txtar runs it",
	"rdsd recv":             "waits for datagrams; testdata/data.txtar runs it",
	"rdsd send":             "needs a daemon that carries datagrams; testdata/data.txtar runs it",
	"rdsd stress":           "needs two daemons; testdata/stress.txtar runs it",
	"rdsd top":              "needs a terminal, or does not end; top_test.go runs it",
	"rdsd volume copy":      "needs volumes with something on them; testdata/volume-copy.txtar runs it",
	"rdsd volume events":    "watches until it is interrupted; testdata/volume.txtar runs it",
	"rdsd counters --watch": "watches until it is interrupted; testdata/busy.txtar runs it",
}

// ends are the exit codes other than 0 that a command may have here, by how it begins:
// the daemon of this test has peers, sockets and volumes of its own, whatever the documents speak of.
var ends = map[string][]int{
	"rdsd check":      {checkCritical},
	"rdsd doctor":     {exitFailed},
	"rdsd ping":       {exitTimeout, exitFailed},
	"rdsd config":     {exitConfig},
	"rdsd bugreport":  {exitExists},
	"rdsd cancel":     {exitDenied, exitMissing},
	"rdsd peers drop": {exitMissing},
	"rdsd sockets":    {exitMissing},
	"rdsd volume":     {exitMissing, exitBusy, exitExists, exitFailed, exitDenied},
	"rdsd status":     {exitMissing},     // --from an archive that is not there
	"rdsd congestion": {exitUnreachable}, // --watch, until the daemon ends
	"rdsd trace":      {exitFailed},      // --otlp to a collector that is not there
	"rdsd completion": {},
}

// shown is a command of a document.
type shown struct{ where, text string }

var (
	shownLine   = regexp.MustCompile(`^(?:\s{2,}|\$ |\s+\$ )(?:sudo )?(?:bin/)?(rdsd (?:[a-z-].*)?)$`)
	shownFenced = regexp.MustCompile(`^(?:\$ )?(?:sudo )?(?:bin/)?(rdsd (?:[a-z-].*)?)$`)
	shownInline = regexp.MustCompile("`(?:bin/)?(rdsd [a-z][^`]*)`")
)

// shownCommands are those on lines of their own, and those within sentences.
func shownCommands(t *testing.T) (lines, inline []shown) {
	t.Helper()
	pages, _ := filepath.Glob("../../../docs/*.md")
	cli, _ := filepath.Glob("../../../docs/cli/*.md")
	pages = append(append(pages, cli...), "../../../README.md")
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		fenced := false
		for i, l := range strings.Split(string(b), "\n") {
			at := fmt.Sprintf("%s:%d", strings.TrimPrefix(page, "../../../"), i+1)
			if strings.HasPrefix(strings.TrimSpace(l), "```") {
				fenced = !fenced
				continue
			}
			m := shownLine.FindStringSubmatch(l)
			if m == nil && fenced {
				m = shownFenced.FindStringSubmatch(l)
			}
			if m != nil && !isForm(m[1]) && (fenced || strings.HasPrefix(l, "    ") || strings.Contains(l, "$ ")) {
				lines = append(lines, shown{at, m[1]})
				continue
			}
			for _, m := range shownInline.FindAllStringSubmatch(l, -1) {
				inline = append(inline, shown{at, m[1]})
			}
		}
	}
	return lines, inline
}

// isForm reports whether a line shows how commands look, and is none itself.
func isForm(s string) bool {
	return strings.ContainsAny(s, "[{…") || strings.Contains(s, "...") || regexp.MustCompile(`(^| )[A-Z]{3,}`).MatchString(s)
}

// words splits a command as a shell would, up to a comment, a pipe or another command.
func words(s string) []string {
	var out []string
	var b strings.Builder
	in, quote := false, rune(0)
	flush := func() {
		if in {
			out = append(out, b.String())
		}
		in = false
		b.Reset()
	}
	for i, r := range s {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ':
			flush()
		case !in && (r == '#' || r == '|' || r == '&' || r == '>' || r == ';' || r == '<') || r == ';':
			flush()
			return out
		default:
			b.WriteRune(r)
			in = true
		}
		if i == len(s)-1 {
			flush()
		}
	}
	flush()
	return out
}

// beginning is the longest key of m that text begins with.
func beginning[V any](m map[string]V, text string) (key string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if (text == k || strings.HasPrefix(text, k+" ")) && len(k) > len(key) {
			key = k
		}
	}
	return key
}

// TestShownCommands: what README and docs show on lines of its own runs, as far as one
// daemon and a few seconds go; what they name in a sentence exists, with its flags.
func TestShownCommands(t *testing.T) {
	lines, inline := shownCommands(t)
	if len(lines) < 30 || len(inline) < 40 {
		t.Fatalf("only %d lines and %d names of commands were found", len(lines), len(inline))
	}
	socket := filepath.Join(t.TempDir(), "s")
	stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	dir := t.TempDir()
	for _, name := range []string{"a.sock", "b.sock", "other.sock"} { // the two nodes of README, the other one of docs/trace.md
		if err := os.Symlink(socket, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("RDSD_SOCKET", socket)
	ran := 0
	for _, c := range lines {
		args := words(strings.ReplaceAll(c.text, "$D", dir))[1:]
		if i := slices.Index(args, "--socket"); i >= 0 { // that of README, which a command is not told by
			c.text = "rdsd " + strings.Join(slices.Concat(args[:i], args[min(i+2, len(args)):]), " ")
		}
		if problem := unknownWords(args); problem != "" {
			t.Errorf("%s: %s: %s", c.where, c.text, problem)
			continue
		}
		if beginning(notRun, c.text) != "" {
			continue
		}
		code, said := runShown(args)
		if ran++; code != exitOK && !slices.Contains(ends[beginning(ends, c.text)], code) {
			t.Errorf("%s: %s ends with %d: %s", c.where, c.text, code, said)
		}
	}
	for _, c := range inline {
		if args := words(c.text); !strings.Contains(c.text, "rds-") {
			if problem := unknownWords(args[1:]); problem != "" {
				t.Errorf("%s: %s: %s", c.where, c.text, problem)
			}
		}
	}
	if ran < 15 {
		t.Errorf("only %d commands were run", ran)
	}
	t.Logf("%d lines, %d of them run; %d names", len(lines), ran, len(inline))
}

func runShown(args []string) (code int, said string) {
	var out, errw bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	code = run(ctx, args, strings.NewReader(""), &out, &errw)
	return code, errw.String()
}

// unknownWords says what of a command there is not: a subcommand, or a flag.
func unknownWords(args []string) string {
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err.Error()
	}
	if cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return "there is no such command"
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !cmd.Runnable() {
		return fmt.Sprintf("%s has no %s", cmd.CommandPath(), rest[0])
	}
	for _, a := range rest {
		if problem := unknownFlag(cmd, a); problem != "" {
			return problem
		}
	}
	return ""
}

func unknownFlag(cmd *cobra.Command, a string) string {
	name, long := strings.CutPrefix(a, "--")
	name, _, _ = strings.Cut(name, "=")
	switch {
	case long && name != "" && name != "help" && name != "version" && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil:
		return fmt.Sprintf("%s has no flag --%s", cmd.CommandPath(), name)
	case !long && len(a) == 2 && a[0] == '-' && a[1] >= 'a' && a != "-h" && cmd.Flags().ShorthandLookup(a[1:]) == nil && cmd.InheritedFlags().ShorthandLookup(a[1:]) == nil:
		return fmt.Sprintf("%s has no flag %s", cmd.CommandPath(), a)
	}
	return ""
}
