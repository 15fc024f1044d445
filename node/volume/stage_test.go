package volume

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
)

var update = flag.Bool("update", false, "write the table of docs/volumes.md anew")

// TestMappingTable holds that a move that is not in the table panics, that every stage but the last can be left, and that each can end.
func TestMappingTable(t *testing.T) {
	for from := range numStages {
		ways := 0
		for to := range numStages {
			func() {
				m := &mapping{id: "m", stage: from}
				defer func() {
					if (recover() == nil) != stageMay[from][to] {
						t.Errorf("%v to %v: allowed %v", from, to, stageMay[from][to])
					}
				}()
				m.move(to)
				if ways++; m.stage != to {
					t.Errorf("%v to %v: is %v", from, to, m.stage)
				}
			}()
		}
		if (ways == 0) != (from == over) || from != over && !stageMay[from][over] {
			t.Errorf("%v has %d ways out", from, ways)
		}
	}
	if s := numStages.String(); s != "unknown" {
		t.Error(s)
	}
}

// TestMappingTableInDocs holds that docs/volumes.md has the table as it is.
func TestMappingTableInDocs(t *testing.T) {
	var s strings.Builder
	s.WriteString("| stage | next | when |\n|---|---|---|\n")
	for _, x := range stageTable {
		fmt.Fprintf(&s, "| %v | %v | %s |\n", x.from, x.to, x.when)
	}
	doctable.Check(t, "../../docs/volumes.md", "./node/volume -run MappingTable -update", *update, doctable.Table{Name: "stages of a mapping", Text: s.String()})
}
