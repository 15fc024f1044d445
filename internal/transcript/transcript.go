package transcript

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"
)

var show = flag.Int("transcript.seed", -1, "print the transcript of this seed")

// before is how many steps are shown before the one that differs.
const before = 6

// Check runs the programs of seeds 0 to seeds-1 and compares the results of each step with
// file; with update it writes the file again.
func Check(t *testing.T, file string, update bool, seeds int, run func(t *testing.T, seed int) (steps []string)) {
	var want []string
	if !update {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want = strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
		if len(want) != seeds {
			t.Fatalf("%s has %d transcripts of %d", file, len(want), seeds)
		}
	}
	var anew strings.Builder
	for seed := range seeds {
		steps := run(t, seed)
		if seed == *show {
			for i, s := range steps {
				t.Logf("seed %d step %d: %s", seed, i, s)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d failed", seed) // its transcript says nothing
		}
		if update {
			fmt.Fprintln(&anew, line(steps))
			continue
		}
		if got := line(steps); got != want[seed] {
			t.Fatalf("%s\nIf it is meant to, read seed %d on both sides of the change with -transcript.seed %d, then write %s anew with -update.",
				differs(seed, steps, want[seed]), seed, seed, file)
		}
	}
	if update {
		if err := os.WriteFile(file, []byte(anew.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// line is the transcript's line in the file: four digits for each step.
func line(steps []string) string {
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(digits(s))
	}
	return b.String()
}

func digits(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	sum := h.Sum32()
	return fmt.Sprintf("%04x", sum>>16^sum&0xffff)
}

// differs shows the first step that is not as it was, and the steps before it.
func differs(seed int, steps []string, want string) string {
	at := 0
	for at < len(steps) && strings.HasPrefix(want[min(4*at, len(want)):], digits(steps[at])) {
		at++
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d does something else than before in step %d of %d:", seed, at, len(steps))
	for i := max(0, at-before); i <= min(at, len(steps)-1); i++ {
		fmt.Fprintf(&b, "\n%d: %s", i, steps[i])
	}
	return b.String()
}
