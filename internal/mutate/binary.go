package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// binary is the test of one package with the edits of a room in it.
type binary struct {
	path, dir string
	args      []string // behind the Go tool's own: -sim.seeds=2000
	filter    string   // of -run
	env       []string
	edits     int
	tests     []test // that pass without an edit, the quickest first
}

// test is one test, with what it takes without an edit and whether it comes by each.
type test struct {
	name string
	took time.Duration
	seen []byte // by the edit's number
}

// buildTests builds the tests that a command names: "./wire/...", or one package with a
// -run and arguments. Those that do not have the room in them are left out.
func buildTests(root, tmp string, n *numbered, command []string) ([]*binary, error) {
	overlay, err := describe(root, tmp, n.text)
	if err != nil {
		return nil, err
	}
	b := binary{edits: len(n.in), filter: "."}
	pattern, args := command[0], command[1:]
	if len(args) > 1 && args[0] == "-run" {
		b.filter, args = args[1], args[2:]
	}
	b.args = args
	b.env = append(os.Environ(), "GOFLAGS=-overlay="+overlay, "RDSD_BIN=")
	const list = "{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}"
	dirs, err := goTool(root, tmp, "list", "-f", list, pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, dirs)
	}
	var all []*binary
	for i, dir := range strings.Fields(dirs) {
		deps, err := goTool(dir, tmp, "list", "-test", "-deps", "-f", "{{.Dir}}", ".")
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, deps)
		}
		if !slices.Contains(strings.Fields(deps), filepath.Join(root, n.dir)) && !startsDaemons(dir) {
			continue
		}
		one := b
		one.dir, one.path = dir, filepath.Join(tmp, strconv.Itoa(i)+".test")
		if out, err := goTool(dir, tmp, "test", "-c", "-vet=off", "-overlay", overlay, "-o", one.path, "."); err != nil {
			return nil, fmt.Errorf("%s with the edits of %s: %w: %s", dir, n.dir, err, tail(out, 12))
		}
		all = append(all, &one)
	}
	return all, nil
}

// startsDaemons reports whether the tests in dir build a program of the product, which then
// has the edit though the test has not.
func startsDaemons(dir string) bool {
	names, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	return slices.ContainsFunc(names, func(name string) bool {
		b, err := os.ReadFile(name)
		return err == nil && bytes.Contains(b, []byte("exec.Command"))
	})
}

// look runs each test by itself without an edit, and notes by which edits it comes.
func (b *binary) look() error {
	var out bytes.Buffer
	cmd := exec.Command(b.path, "-test.list", b.filter)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = b.dir, &out, &out, b.env
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", b.dir, err, tail(out.String(), 12))
	}
	names := slices.DeleteFunc(strings.Fields(out.String()), func(s string) bool {
		return !strings.HasPrefix(s, "Test") && !strings.HasPrefix(s, "Fuzz") && !strings.HasPrefix(s, "Example")
	})
	found := make(chan test, len(names))
	var l []*asked
	by := map[*asked]string{}
	for _, name := range names {
		a := &asked{}
		by[a], l = name, append(l, a)
	}
	err := each(l, func(a *asked) error {
		t, err := b.lookAt(by[a])
		if err == nil && t.name != "" {
			found <- t
		}
		return err
	})
	close(found)
	for t := range found {
		b.tests = append(b.tests, t)
	}
	slices.SortFunc(b.tests, func(x, y test) int { return cmp.Or(cmp.Compare(x.took, y.took), cmp.Compare(x.name, y.name)) })
	return err
}

// lookAt runs one test without an edit. One that fails, or takes longer than is wanted, is
// said, and no test is returned.
func (b *binary) lookAt(name string) (test, error) {
	file, err := os.CreateTemp(filepath.Dir(b.path), "seen")
	if err != nil {
		return test{}, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := file.Truncate(int64(b.edits + 1)); err != nil {
		return test{}, err
	}
	within := *limit
	if *longest > 0 {
		within = min(within, *longest)
	}
	begun := time.Now()
	out, err := b.command([]test{{name: name}}, within, "MUTATE_REACH="+file.Name())
	if err != nil {
		fmt.Printf("%s %s is left out: %v%s\n", filepath.Base(b.dir), name, err, firstFailed(out))
		return test{}, nil
	}
	t := test{name: name, took: time.Since(begun)}
	t.seen, err = os.ReadFile(file.Name())
	return t, err
}

// run runs tests with edit number n: for five times as long as they took without, and
// some seconds more, for the machine may be busier now.
func (b *binary) run(l []test, n int) (string, error) {
	sum := time.Duration(0)
	for _, t := range l {
		sum += t.took
	}
	return b.command(l, min(5*sum+10*time.Second, *limit), "MUTATE_EDIT="+strconv.Itoa(n))
}

// command runs tests for so long, with what the environment says of edits.
func (b *binary) command(l []test, within time.Duration, env string) (string, error) {
	names := make([]string, len(l))
	for i, t := range l {
		names[i] = regexp.QuoteMeta(t.name)
	}
	ctx, cancel := context.WithTimeout(life, within+5*time.Second)
	defer cancel()
	args := append([]string{"-test.run", "^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.timeout", within.String()}, b.args...)
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Dir = b.dir
	cmd.Env = append(slices.Clone(b.env), env)
	return runGroup(ctx, cmd)
}

// runGroup runs a command whose children end with it, within memory.
func runGroup(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return "", err
	}
	done := make(chan struct{})
	go bound(cmd.Process.Pid, done)
	err := cmd.Wait()
	close(done)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what a failed test left
	return out.String(), err
}
