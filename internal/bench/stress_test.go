package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// `rdsd stress` at depth 1, and a plain C program that does the same: a datagram, its answer,
// the next one, through two daemons.

const stressPort = 4000

// plainPairs measures the C program.
func plainPairs(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		sources, err := filepath.Glob("../../sdk/c/src/*.c")
		if err != nil || len(sources) == 0 {
			return sample{}, fmt.Errorf("the C library's sources: %d of them, %v", len(sources), err)
		}
		binary, err := compile("pairs.c", append(sources, "-I../../sdk/c/include", "-pthread")...)
		if err != nil {
			return sample{}, skip("a C compiler: %v", err)
		}
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		remote := fmt.Sprint(nodeB, ":", stressPort)
		run := func(d *daemon, args ...string) (*proc, error) {
			cmd := exec.Command(binary, args...)
			cmd.Env = append(os.Environ(), "RDSD_SOCKET="+d.target)
			return w.foreign("plain C, "+args[0], cmd)
		}
		answer, err := run(ds[1], "answer", remote, strconv.Itoa(bytes))
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(answer); err != nil {
			return sample{}, err
		}
		ask, err := run(ds[0], "ask", nodeA+":0", strconv.Itoa(bytes), remote)
		if err != nil {
			return sample{}, err
		}
		return w.window(ask, wordCount, d)
	}
}

// rdsdStress measures the command, as its totals have it: they begin with the connection, so
// it has a second at least.
func rdsdStress(bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		at := fmt.Sprint(nodeB, ":", stressPort)
		listens, err := w.start("rdsd stress --listen", exec.Command(rdsdBinary, "stress", "--socket", ds[1].target, "--listen", at, "--ack-size", strconv.Itoa(bytes)), nil)
		if err != nil {
			return sample{}, err
		}
		if err := w.until("rdsd stress listens", func() bool { return strings.Contains(listens.out.String(), "listening") }); err != nil {
			return sample{}, err
		}
		out, err := exec.Command(rdsdBinary, "stress", "--socket", ds[0].target, "--to", at, "--from", nodeA, "--size", strconv.Itoa(bytes),
			"--depth", "1", "--duration", max(d, time.Second).String(), "--json").Output()
		if err != nil {
			return sample{}, fmt.Errorf("rdsd stress: %w: %s", err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		var last struct {
			Final     bool
			PerSecond float64 `json:"done_per_s"`
		}
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || !last.Final {
			return sample{}, fmt.Errorf("rdsd stress: no totals in %q: %v", out, err)
		}
		return sample{rate: last.PerSecond}, w.dead()
	}
}
