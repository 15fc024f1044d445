package rdsd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
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

// The lines of the front page send a datagram that arrives, again and again, though
// the program ends right after them.
func TestFrontPage(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(client, .*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("no program of Go on the front page")
	}
	a, b := rdsdtest.Pair(t)
	r, err := b.Dial().Bind(t.Context(), b.AddrPort(0))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.NewReplacer("127.0.0.2:0", a.AddrPort(0).String(), "127.0.0.3:4000", r.LocalAddr().String(),
		`os.Getenv("D") + "/a.sock"`, fmt.Sprintf("%q", a.Socket), "\n", "\nif err != nil { log.Fatal(err) }\n").Replace(string(block[1]))
	dir, err := os.MkdirTemp(".", "testdata-frontpage-") // within the module
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := `package main
import ("context"; "log"; "net/netip"; "github.com/rdsd/rdsd/sdk/go")
func main() { ctx := context.Background()
` + lines + "}\n"
	if err := os.WriteFile(dir+"/main.go", []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	exe := dir + "/hello"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, "./"+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, program)
	}
	for i := range 8 {
		if out, err := exec.CommandContext(t.Context(), exe).CombinedOutput(); err != nil {
			t.Fatalf("run %d: %v: %s", i, err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		d, err := r.Recv(ctx)
		cancel()
		if err != nil || string(d.Payload) != "hello" {
			t.Fatalf("run %d: %q, %v", i, d.Payload, err)
		}
	}
}
