package rtrs

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
)

var update = flag.Bool("update", false, "write the tables of docs/protocol.md and the transcripts anew")

// TestTablesInDocs: docs/protocol.md has the tables as they are.
func TestTablesInDocs(t *testing.T) {
	var tables []doctable.Table
	for name, ts := range map[string][]transition{"client": clientTable, "server": serverTable} {
		var s strings.Builder
		s.WriteString("| state | next | when |\n|---|---|---|\n")
		for _, x := range ts {
			fmt.Fprintf(&s, "| %v | %v | %s |\n", x.from, x.to, x.when)
		}
		tables = append(tables, doctable.Table{Name: name + " path table", Text: s.String()})
	}
	for name, ts := range map[string][]taking{"client": clientTakings, "server": serverTakings} {
		var s strings.Builder
		s.WriteString("| state | what comes | what becomes of it |\n|---|---|---|\n")
		for _, x := range ts {
			fmt.Fprintf(&s, "| %v | %v | %s |\n", x.in, x.what, x.does)
		}
		tables = append(tables, doctable.Table{Name: name + " arrival table", Text: s.String()})
	}
	var s strings.Builder
	s.WriteString("| state | order | what it does |\n|---|---|---|\n")
	for _, from := range []State{Reconnecting, Connecting, Connected, Closing, Closed} {
		for o := range numOrders {
			fmt.Fprintf(&s, "| %v | %v | %s |\n", from, o, orderTable[from][o].text)
		}
	}
	doctable.Check(t, "../docs/protocol.md", "./rtrs -update", *update, append(tables, doctable.Table{Name: "client order table", Text: s.String()})...)
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
