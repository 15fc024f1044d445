package volume

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
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
	const page, begin, end = "../../docs/volumes.md", "<!-- stages of a mapping: begin; written by go test ./node/volume -run MappingTable -update -->\n", "<!-- stages of a mapping: end -->"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the stages of a mapping", page)
	}
	var s strings.Builder
	s.WriteString("| stage | next | when |\n|---|---|---|\n")
	for _, x := range stageTable {
		fmt.Fprintf(&s, "| %v | %v | %s |\n", x.from, x.to, x.when)
	}
	switch text := head + begin + s.String() + end + tail; {
	case text == string(b):
	case *update:
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table; go test ./node/volume -run MappingTable -update writes it", page)
	}
}
