package rnbd

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
)

var update = flag.Bool("update", false, "write the tables of docs/protocol.md and testdata/programs.hash anew")

// TestVolumeTablesInDocs: docs/protocol.md has the tables as they are.
func TestVolumeTablesInDocs(t *testing.T) {
	var s strings.Builder
	s.WriteString("| state | next | when |\n|---|---|---|\n")
	for _, x := range volumeTable {
		fmt.Fprintf(&s, "| %v | %v | %s |\n", x.from, x.to, x.when)
	}
	s.WriteString("\n| state | message | due when |\n|---|---|---|\n")
	for state := range duties {
		for _, d := range duties[state] {
			name := d.name
			if name == "-" {
				name = "none: the volume is gone"
			}
			fmt.Fprintf(&s, "| %v | %s | %s |\n", State(state), name, d.when)
		}
	}
	doctable.Check(t, "../docs/protocol.md", "./rnbd -run VolumeTables -update", *update, doctable.Table{Name: "volume tables", Text: s.String()})
}

// TestVolumeTable: what is not in the table panics, every state has a way out but the
// last, and each has something to do about the server.
func TestVolumeTable(t *testing.T) {
	for from := range numStates {
		ways := 0
		for to := range numStates {
			func() {
				v := &Volume{state: from}
				defer func() {
					if (recover() == nil) != volumeMay[from][to] {
						t.Errorf("%v to %v: allowed %v", from, to, volumeMay[from][to])
					}
				}()
				v.setState(1, to)
				if ways++; v.state != to || v.since != 1 {
					t.Errorf("%v to %v: is %v since %v", from, to, v.state, v.since)
				}
			}()
		}
		if (ways == 0) != (from == Unmapped) {
			t.Errorf("%v has %d ways out", from, ways)
		}
		if len(duties[from]) == 0 {
			t.Errorf("%v: there is nothing to do", from)
		}
	}
}
