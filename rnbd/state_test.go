package rnbd

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/protocol.md anew")

// TestVolumeTablesInDocs: docs/protocol.md has the tables as they are.
func TestVolumeTablesInDocs(t *testing.T) {
	const page, begin, end = "../docs/protocol.md", "<!-- volume tables: begin; written by go test ./rnbd -run VolumeTables -update -->\n", "<!-- volume tables: end -->"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the tables of a volume", page)
	}
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
	switch text := head + begin + s.String() + end + tail; {
	case text == string(b):
	case *update:
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has other tables; go test ./rnbd -run VolumeTables -update writes them", page)
	}
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
