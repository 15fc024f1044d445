package rtrs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/protocol.md anew")

// TestTablesInDocs: docs/protocol.md has the tables as they are.
func TestTablesInDocs(t *testing.T) {
	const page = "../docs/protocol.md"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, ts := range map[string][]transition{"client": clientTable, "server": serverTable} {
		begin, end := fmt.Sprintf("<!-- %s path table: begin; written by go test ./rtrs -update -->\n", name), fmt.Sprintf("<!-- %s path table: end -->", name)
		head, rest, ok := strings.Cut(text, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for the %s's table", page, name)
		}
		var s strings.Builder
		s.WriteString("| state | next | when |\n|---|---|---|\n")
		for _, x := range ts {
			fmt.Fprintf(&s, "| %v | %v | %s |\n", x.from, x.to, x.when)
		}
		text = head + begin + s.String() + end + tail
	}
	begin, end := "<!-- client order table: begin; written by go test ./rtrs -update -->\n", "<!-- client order table: end -->"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of orders", page)
	}
	var s strings.Builder
	s.WriteString("| state | order | what it does |\n|---|---|---|\n")
	for _, from := range []State{Reconnecting, Connecting, Connected, Closing, Closed} {
		for o := range numOrders {
			fmt.Fprintf(&s, "| %v | %v | %s |\n", from, o, orderTable[from][o].text)
		}
	}
	text = head + begin + s.String() + end + tail
	switch {
	case text == string(b):
	case *update:
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has other tables; go test ./rtrs -run TablesInDocs -update writes them", page)
	}
}

// TestTables: what is not in a table panics, and every state has a way out but
// the last.
func TestTables(t *testing.T) {
	for name, ts := range map[string][]transition{"client": clientTable, "server": serverTable} {
		may := newTable(ts)
		from := map[State]bool{}
		for _, x := range ts {
			from[x.from] = true
			from[x.to] = from[x.to] || x.to == Dead
		}
		for s, ok := range from {
			if !ok {
				t.Errorf("%s: no way out of %v", name, s)
			}
		}
		for s := range numStates {
			for e := range numStates {
				func() {
					defer func() {
						if (recover() != nil) == may[s][e] {
							t.Errorf("%s: %v to %v: allowed %v", name, s, e, may[s][e])
						}
					}()
					may.check(s, e)
				}()
			}
		}
	}
	for _, s := range []fmt.Stringer{State(99), Policy(99), EventKind(99), Wait, Error, EventPath, MinLatency} {
		if s.String() == "" {
			t.Errorf("%T has no word", s)
		}
	}
}
