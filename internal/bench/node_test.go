package bench

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// nodeBinary is the test binary of package node, whose figures need its
// insides; the report builds it.
var nodeBinary string

// nodeFigure runs one of them: what TestBenchFigure of package node/datagram prints.
func nodeFigure(name string, bound time.Duration) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		if nodeBinary == "" {
			return sample{}, skip("the test binary of package node was not built")
		}
		w := newWorld(d)
		defer w.close()
		p, err := w.start("node "+name, exec.Command(nodeBinary, "-test.run", "TestBenchFigure$", "-bench.figure", name,
			"-bench.for", d.String(), "-bench.idle", strconv.Itoa(*benchIdle)), nil)
		if err != nil {
			return sample{}, err
		}
		select {
		case <-p.exited:
		case <-time.After(bound):
			return sample{}, fmt.Errorf("%s: still running after %v", p.name, bound)
		}
		for line := range strings.Lines(p.out.String()) {
			if v, ok := strings.CutPrefix(line, "figure "); ok && p.err == nil {
				rate, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
				return sample{rate: rate}, err
			}
		}
		return sample{}, fmt.Errorf("%s: %v: %s", p.name, p.err, p.out.String())
	}
}

// buildNode compiles the tests of package node/datagram into dir.
func buildNode(ctx context.Context, dir string) (string, error) {
	path := dir + "/node.test"
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", path, "github.com/rdsd/rdsd/node/datagram").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go test -c ./node/datagram: %v\n%s", err, out)
	}
	return path, nil
}
