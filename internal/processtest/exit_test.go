package processtest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

const (
	failed = 1
	config = 78
)

// TestExitCodes: what keeps a daemon from starting is told once, and the code says
// whether to try again could help.
func TestExitCodes(t *testing.T) {
	d := dir(t)
	first := run(t, nil, serveArgs(t, d, "--http", "127.0.0.1:0")...)
	first.says("serving")
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	_, busy, _ := net.SplitHostPort(tcp.Addr().String())
	file := filepath.Join(d, "c.toml")
	write := func(text string) string {
		if err := os.WriteFile(file, []byte("version = 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var open unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"socket taken", []string{"--socket", filepath.Join(d, "s")}, failed, "another daemon answers there; stop it, or give this one its own --socket (api.socket is set by the flag --socket)"},
		{"port taken", []string{"--port", busy}, failed, "another rdsd running? (rds.port is set by the flag --port)"},
		{"page taken", []string{"--http", tcp.Addr().String()}, failed, "address already in use (http.listen is set by the flag --http)"},
		{"state directory taken", []string{"--volume-state-dir", filepath.Join(d, "s.volumes")}, failed, "s.volumes (volumes.state_dir is set by the flag --volume-state-dir)"},
		{"unknown key", []string{"--config", write("[rds]\nprot = 1\n")}, config, "did you mean rds.port"},
		{"value out of range", []string{"--port", "0"}, config, "--port"},
		{"no such file", []string{"--config", filepath.Join(d, "none")}, config, "none"},
		{"wrong file, only checked", []string{"--check", "--config", filepath.Join(d, "none")}, config, "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := run(t, nil, serveArgs(t, dir(t), c.args...)...)
			if code := p.exit(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if n := strings.Count(p.out.String(), c.want); n != 1 {
				t.Errorf("%q is there %d times", c.want, n)
			}
		})
	}
	for _, check := range []string{"", "--check"} {
		t.Run("too many descriptors "+check, func(t *testing.T) {
			write("[limits]\nmax_descriptors = 1000000000\n")
			p := run(t, nil, serveArgs(t, dir(t), append(strings.Fields(check), "--config", file)...)...)
			if code := p.exit(); code != config {
				t.Errorf("exit code %d, want %d", code, config)
			}
			if !strings.Contains(p.out.String(), "c.toml:3: limits.max_descriptors") {
				t.Error("it does not say where")
			}
		})
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// TestHangup: SIGHUP ends no daemon, at no time; it has the file read again.
func TestHangup(t *testing.T) {
	d := dir(t)
	file := filepath.Join(d, "c.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte("version = 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[api]\ndrain_timeout = \"1s\"\n")
	p := run(t, nil, serveArgs(t, d, "--config", file)...)
	p.says("serving")
	write("[api]\ndrain_timeout = \"2s\"\n[rds]\nlanes = 3\n[log]\nlevel = \"debug\"\n")
	p.signal(syscall.SIGHUP)
	p.says("configuration reloaded", `changed="[api.drain_timeout log.level]" restart_needed=[rds.lanes]`)
	write("[api]\ndrain_timeout = \"2 apples\"\n")
	p.signal(syscall.SIGHUP)
	p.says("the configuration was not reloaded", "c.toml:3")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(p.out.String(), "timeout=2s") {
		t.Error("the time to drain is not the one of the good file")
	}
}

// TestHangupDuringTheStart: the signal is held before anything else is done. The
// configuration is a pipe, so that the start waits until the signal was sent.
func TestHangupDuringTheStart(t *testing.T) {
	d := dir(t)
	pipe := filepath.Join(d, "c.toml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := run(t, nil, serveArgs(t, d, "--config", pipe)...)
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the daemon has opened it
	if err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	if _, err := w.WriteString("version = 1\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	p.says("serving")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestReloadStandsStill: a daemon ends in order also while its configuration cannot be read
// to its end. The file is a pipe, whose writer says nothing.
func TestReloadStandsStill(t *testing.T) {
	d := dir(t)
	pipe := filepath.Join(d, "c.toml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := run(t, nil, serveArgs(t, d, "--config", pipe)...)
	if err := os.WriteFile(pipe, []byte("version = 1\n"), 0); err != nil {
		t.Fatal(err)
	}
	p.says("serving")
	p.signal(syscall.SIGHUP)
	eventually(t, "the file is opened again", func() error {
		fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			t.Cleanup(func() { unix.Close(fd) })
		}
		return err
	})
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestLogReaderEnds: who reads the log may end. The daemon goes on, and counts what it could
// not write.
func TestLogReaderEnds(t *testing.T) {
	d := dir(t)
	pipe := filepath.Join(d, "log")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := run(t, []string{"sh", "-c", `exec "$0" "$@" 2>` + pipe}, serveArgs(t, d)...)
	r, err := os.Open(pipe) // returns when the daemon has it
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(r); s.Scan() && !strings.Contains(s.Text(), "serving"); {
	}
	r.Close()
	p.signal(syscall.SIGHUP) // it has something to say
	eventually(t, "a lost line is counted", func() error {
		out, err := exec.Command(rdsdtest.Binary(t), "--socket", filepath.Join(d, "s"), "counters", "--nonzero").CombinedOutput()
		if err == nil && !strings.Contains(string(out), "log_lost") {
			err = errors.New("it is not")
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	warm(t, filepath.Join(d, "s"))
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestDemoReaderEnds: a demo that nobody reads any more ends, and leaves nothing behind.
func TestDemoReaderEnds(t *testing.T) {
	d, temp := dir(t), dir(t)
	pipe := filepath.Join(d, "out")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := run(t, []string{"env", "TMPDIR=" + temp, "sh", "-c", `exec "$0" "$@" >` + pipe}, "demo", "--plain")
	r, err := os.Open(pipe) // returns when the demo has it
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(r)
	if !s.Scan() {
		t.Error("it says nothing")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) == 0 {
		t.Errorf("it has no directory: %v", err)
	}
	r.Close()
	p.exit()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("it has left %v, %v", left, err)
	}
}
