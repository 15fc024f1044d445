package rdsd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

var exampleNames = []string{"echo", "request", "spool", "manytoone", "mapvolume"}

// The programs in README.md are the files under examples.
func TestReadmePrograms(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(// .*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) != len(exampleNames) {
		t.Fatalf("%d programs in README.md, want %d", len(blocks), len(exampleNames))
	}
	for i, name := range exampleNames {
		file, err := os.ReadFile("examples/" + name + "/main.go")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(blocks[i][1], file) {
			t.Errorf("block %d of README.md differs from examples/%s/main.go", i+1, name)
		}
	}
}

// built is the file of one of the programs.
func built(t *testing.T, name string) string {
	t.Helper()
	return rdsdtest.Build(t, "github.com/rdsd/rdsd/sdk/go/examples/"+name)
}

// example starts one of the programs with a daemon; out gives its lines.
func example(t *testing.T, d *rdsdtest.Daemon, name string, args ...string) (lines <-chan string, wait func() error) {
	t.Helper()
	program := built(t, name) // which may take a while, and is not its time
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "RDSD_SOCKET="+d.Socket)
	w := &lineWriter{lines: make(chan string, 100)}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { // ends with the process
		done <- cmd.Wait()
		close(w.lines)
	}()
	t.Cleanup(func() {
		cancel()
		for range w.lines {
		}
	})
	return w.lines, func() error { return <-done }
}

type lineWriter struct {
	part  []byte
	lines chan string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		line, rest, ok := bytes.Cut(w.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		w.lines <- string(line)
		w.part = rest
	}
}

func wantLine(t *testing.T, lines <-chan string, pattern string) {
	t.Helper()
	select {
	case line := <-lines:
		if !regexp.MustCompile(pattern).MatchString(line) {
			t.Fatalf("printed %q, want %s", line, pattern)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("printed nothing, want %s", pattern)
	}
}

func TestExamples(t *testing.T) {
	a, b := rdsdtest.Pair(t)
	localA := a.AddrPort(0).String()

	t.Run("echo", func(t *testing.T) {
		to := b.AddrPort(4700).String()
		server, _ := example(t, b, "echo", to)
		wantLine(t, server, "^echo at "+to)
		client, wait := example(t, a, "echo", localA, to, "hello")
		wantLine(t, client, `^`+to+` says "hello"$`)
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("request", func(t *testing.T) {
		out, wait := example(t, a, "request", localA, "127.0.0.250:7")
		wantLine(t, out, "^no answer in time$")
		wantLine(t, out, "^3 cancelled, 0 in flight$")
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("spool", func(t *testing.T) {
		built(t, "spool")
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s, err := b.Dial().Bind(ctx, b.AddrPort(4701), rdsd.WithRecvBuffer(4096), rdsd.WithRecvWindow(1, 1))
		if err != nil {
			t.Fatal(err)
		}
		fillers := congest(t, a.Dial(), localA, s.LocalAddr())
		const n = 500
		out, wait := example(t, a, "spool", localA, s.LocalAddr().String(), fmt.Sprint(n))
		wantLine(t, out, fmt.Sprintf("^congested, %d spooled$", n))
		for filled, records := 0, 0; filled < fillers || records < n; { // two flows: any order between them
			d, err := s.Recv(ctx)
			switch {
			case err != nil:
				t.Fatalf("after %d records and %d of %d others: %v", records, filled, fillers, err)
			case len(d.Payload) == fillerBytes:
				filled++
			case string(d.Payload) != fmt.Sprintf("record %d", records):
				t.Fatalf("%q, want record %d", d.Payload, records)
			default:
				records++
			}
		}
		wantLine(t, out, fmt.Sprintf("^%d delivered, refused [1-9][0-9]* times$", n))
		if err := wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("manytoone", func(t *testing.T) {
		to := b.AddrPort(4702).String()
		collector, collected := example(t, b, "manytoone", to, "8")
		wantLine(t, collector, "^collecting at ")
		workers, worked := example(t, a, "manytoone", localA, to, "8")
		wantLine(t, collector, "^8 workers have reported$")
		for _, wait := range []func() error{collected, worked} {
			if err := wait(); err != nil {
				t.Error(err)
			}
		}
		for line := range workers {
			if strings.TrimSpace(line) != "" {
				t.Errorf("workers printed %q", line)
			}
		}
	})
}

const fillerBytes = 500

// congest sends to a port whose reader does not read until it is congested, and
// returns how many datagrams were accepted.
func congest(t *testing.T, c *rdsd.Client, local string, to netip.AddrPort) (accepted int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := c.Bind(ctx, netip.MustParseAddrPort(local))
	if err != nil {
		t.Fatal(err)
	}
	for ctx.Err() == nil {
		switch err := s.TrySend(to, make([]byte, fillerBytes)); {
		case err == nil:
			accepted++
		case errors.Is(err, rdserr.ErrCongested):
			return accepted
		case !errors.Is(err, rdserr.ErrWouldBlock):
			t.Fatal(err)
		}
	}
	t.Fatalf("not congested after %d datagrams", accepted)
	return 0
}

// The front page under "Five minutes", pasted into a shell, runs as it stands; nothing but the addresses, the build
// and what a person waits for is different. What its program sends arrives each time, though it ends right after.
func TestFrontPage(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Five minutes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	const command, runs = "go run $D/hello.go", 5
	if !strings.Contains(section, "`"+command+"`") {
		t.Fatalf("the front page does not say `%s`", command)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```(\\w*)\n(.*?)```").FindAllStringSubmatch(section, -1) {
		switch kind, text := block[1], block[2]; {
		case kind == "go":
			fmt.Fprintf(&script, "cat >$D/hello.go <<'END'\n%sEND\n%s", text, strings.Repeat(command+"\n", runs))
		case strings.HasPrefix(text, "make\n"):
			script.WriteString(strings.TrimPrefix(text, "make\n"))
			script.WriteString("for s in a b; do until bin/rdsd --socket $D/$s.sock status; do sleep 0.1; done; done\n")
		case kind == "":
			script.WriteString(text)
			script.WriteString("until bin/rdsd --socket $D/b.sock sockets | grep -q :4000; do sleep 0.1; done\n")
		}
	}
	net := fmt.Sprintf("127.%d.%d.", 64+rand.IntN(128), 1+rand.IntN(250))
	lines := strings.NewReplacer("127.0.0.", net, "bin/rdsd", rdsdtest.Binary(t)).Replace(script.String())
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", lines)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }() // what it left in the background
	err = cmd.Wait()
	for {
		said, _ := os.ReadFile(out.Name())
		switch n := strings.Count(string(said), " 5 bytes: hello\n"); {
		case err == nil && n == runs+1: // that of `rdsd send` too
			return
		case err != nil || n > runs+1 || ctx.Err() != nil:
			t.Fatalf("%v, received %d times, want %d:\n%s\n%s", err, n, runs+1, lines, said)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
