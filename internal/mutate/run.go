package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// verdict is what became of one mutation.
type verdict int

const (
	noticed verdict = iota
	hung            // noticed by a time limit
	survived
	noCompile
	equivalent
)

var verdictNames = [...]string{"noticed", "hung", "SURVIVED", "does not compile", "equivalent"}

func (v verdict) String() string { return verdictNames[v] }

// result is a mutation with its verdict.
type result struct {
	site
	room    string
	verdict verdict
	by      string // the command that noticed
	said    string // what it printed last
	took    time.Duration
}

// grace is what a test command that reached -limit, which makes a hanging test say
// where it hangs, gets until it is ended from outside.
const grace = 30 * time.Second

// try makes the edit visible to the Go tool alone and runs the room's tests until
// one notices.
func try(root string, r room, s site) (result, error) {
	res := result{site: s, room: r.dir, verdict: survived}
	begun := time.Now()
	defer func() { res.took = time.Since(begun) }()
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(tmp)
	edited, err := s.edited(root)
	if err != nil {
		return res, err
	}
	overlay, err := describe(root, tmp, edited)
	if err != nil {
		return res, err
	}
	if out, err := goTool(root, tmp, "build", "-overlay", overlay, "./"+r.dir); err != nil {
		res.verdict, res.said = noCompile, out
		return res, nil
	}
	for i, t := range r.tests {
		if *stages > 0 && i == *stages {
			break
		}
		args := append([]string{"test", "-overlay", overlay, "-count=1", "-failfast", "-vet=off", "-timeout", limit.String()}, t...)
		out, err := goTool(root, tmp, args...)
		if err == nil {
			continue
		}
		if life.Err() != nil {
			return res, life.Err()
		}
		if strings.Contains(out, "[build failed]") { // tests that do not build have noticed nothing
			res.verdict, res.said = noCompile, tail(out, 12)
			break
		}
		res.verdict, res.by, res.said = noticed, strings.Join(t, " ")+firstFailed(out), tail(out, 12)
		if strings.Contains(out, "panic: test timed out") || err == context.DeadlineExceeded {
			res.verdict = hung
		}
		break
	}
	res.took = time.Since(begun)
	return res, nil
}

// edited returns the file of the tree with the edit made.
func (s site) edited(root string) (map[string]string, error) {
	src, err := os.ReadFile(filepath.Join(root, s.file))
	if err != nil {
		return nil, err
	}
	return map[string]string{s.file: string(src[:s.from]) + s.text + string(src[s.to:])}, nil
}

// goTool runs one command of the Go tool in the module's root. The daemons that
// tests start are built by the tests themselves or are the test binary, so they
// have the edit too.
func goTool(root, tmp string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(life, *limit+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	// A daemon that a test builds is built by another go command, which must see the edit.
	if args[0] == "test" {
		cmd.Env = append(os.Environ(), "GOFLAGS=-overlay="+filepath.Join(tmp, "overlay.json"))
		cmd.Env = append(cmd.Env, "RDSD_BIN=")
	}
	return runGroup(ctx, cmd)
}

// firstFailed names the test that noticed: one that has nothing to do with the edit,
// and only disliked a busy machine, has noticed nothing.
func firstFailed(out string) string {
	for _, mark := range []string{"--- FAIL: ", "panic: ", "fatal error: "} {
		if _, rest, ok := strings.Cut(out, mark); ok {
			name, _, _ := strings.Cut(rest, "\n")
			return ": " + oneLine(name)
		}
	}
	return ""
}

func tail(s string, n int) string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

func (r result) String() string {
	return fmt.Sprintf("%-16s %s  line %d: %s -> %s  (%.0f s%s)", r.verdict, r.id, r.line, oneLine(r.was), oneLine(r.text), r.took.Seconds(), by(r.by))
}

func by(s string) string {
	if s == "" {
		return ""
	}
	return ", " + s
}

func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 70 {
		s = s[:67] + "..."
	}
	return s
}
