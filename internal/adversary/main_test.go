package adversary

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// What make soak and whoever replays a run set.
var (
	runTime    = flag.Duration("adversary.time", 2*time.Minute, "how long the adversary is beside the victims, quiet phases included")
	runSeed    = flag.Uint64("adversary.seed", 0, "what acts are drawn from; 0: another one each time")
	runActs    = flag.String("adversary.acts", "", "names of the acts to draw from, with commas; \"ring/\" is all of that kind; empty: all")
	runProfile = flag.String("adversary.profile", "", "directory for processor profiles of the daemons in the first hostile phase")
	runLogs    = flag.String("adversary.logs", "", "directory for the daemons' logs when the run fails, with every line")
	runSlack   = flag.Float64("adversary.slack", 1, "latencies may be so many times their bars before the run fails; the report shows them as they are")
	runWithout = flag.String("adversary.without", "", "names of acts to leave out")
)

// roleEnv says what a process of the test binary is, and orderEnv what it is to do.
const (
	roleEnv  = "RDSD_ADVERSARY_ROLE"
	orderEnv = "RDSD_ADVERSARY_ORDER"
)

var roles = map[string]func(*bufio.Scanner) error{"worker": workerMain, "victims": victimsMain, "canary": canaryMain}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](bufio.NewScanner(os.Stdin)); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	rdsdtest.Remove()
	os.Exit(code)
}

// order reads what this process is to do.
func order(into any) error { return json.Unmarshal([]byte(os.Getenv(orderEnv)), into) }

// workerOrder is that of a worker.
type workerOrder struct {
	Target Target
	Acts   []string
	Seed   uint64
	Lanes  int
}

// workerMain plays until its input ends.
func workerMain(in *bufio.Scanner) error {
	var o workerOrder
	if err := order(&o); err != nil {
		return err
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 8192, Max: 8192})
	acts, err := Choose(o.Acts, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the process
		for in.Scan() {
		}
		cancel()
	}()
	return Worker(ctx, o.Target, acts, o.Seed, o.Lanes, os.Stdout)
}

// answerJSON writes one line for the runner.
func answerJSON(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = io.WriteString(os.Stdout, string(b)+"\n")
	}
	return err
}

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// row is a distribution of round trips in microseconds.
type row struct {
	N        int
	P50, P99 float64
	Max      float64
}
