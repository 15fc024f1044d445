package simtest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var (
	huntFlag  = flag.String("sim.hunt", "", "what TestHunt looks through: datagrams, volumes, devices")
	firstFlag = flag.Int64("sim.first", 0, "a seed that TestHunt tries before all others, 0: none")
)

// TestHunt runs seeds until one shows that a rule is broken: of volumes in worlds
// that have them. It is for a test program in which one is (go run
// ./internal/mutate -rules), and fails when no seed shows anything.
func TestHunt(t *testing.T) {
	first := int64(1)
	switch *huntFlag {
	case "":
		t.Skip("elsewhere: no rule is broken in this program; the phase of the mutants builds and runs those in which one is")
	case "volumes":
		first += volumeSeeds
	case "devices":
		first += deviceSeeds
	case "datagrams":
	default:
		t.Fatalf("-sim.hunt=%s; want datagrams, volumes or devices", *huntFlag)
	}
	if *firstFlag != 0 && shown(*firstFlag) {
		return
	}
	for s := first; s < first+int64(*seedsFlag); s++ {
		if shown(s) {
			return
		}
	}
	t.Fatalf("%d seeds show nothing", *seedsFlag)
}

// shown prints what seed s shows, and reports whether it shows anything.
func shown(s int64) bool {
	text := broken(s)
	if text != "" {
		fmt.Printf("found: seed %d | %s\n", s, strings.ReplaceAll(text, "\n", " "))
	}
	return text != ""
}

// broken says what seed s shows, "" if nothing. A core that gives up is found,
// too.
func broken(s int64) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint("panic: ", p)
		}
	}()
	if r := Run(s, Options{}); r.Err != nil {
		return r.Err.(*Violation).Text
	}
	return ""
}
