package sim

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/internal/doctable"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

var update = flag.Bool("update", false, "write the table of one-sided links into docs/architecture.md")

// TestCapsTable holds the table of what one-sided links can do to what the providers say.
func TestCapsTable(t *testing.T) {
	what := []struct{ field, text string }{
		{"SecretKeys", "keys and addresses are hard to guess, and a key is not given again soon"},
		{"Places", "a write with immediate says where it went"},
		{"Faults", "an access that is not allowed is told here, with key and address"},
		{"PeerRevokes", "the peer may end a key"},
		{"Fills", "how much of memory was filled is told"},
		{"Guards", "memory is charged for by the page, before it is written"},
		{"Pinned", "the pages of registered memory stay"},
	}
	if n := reflect.TypeFor[transport.OneSidedCaps]().NumField(); n != len(what) {
		t.Fatalf("%d capabilities are described, there are %d", len(what), n)
	}
	n := NewNet(&Clock{}, nil, Profile{})
	h := n.AddHost(addrA)
	providers := []struct {
		name string
		caps transport.OneSidedCaps
	}{
		{"tcp", tcp.New().OneSidedCaps()},
		{"sim", NewOneSided(h).OneSidedCaps()},
		{"sim.Device", NewDevice(h, Device{Nowhere: true, Blind: true, Pinned: true, Unguarded: true}).OneSidedCaps()},
	}
	var b strings.Builder
	b.WriteString("| capability | what |")
	for _, p := range providers {
		fmt.Fprintf(&b, " %s |", p.name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(providers)) + "\n")
	for _, w := range what {
		fmt.Fprintf(&b, "| `%s` | %s |", w.field, w.text)
		for _, p := range providers {
			if reflect.ValueOf(p.caps).FieldByName(w.field).Bool() {
				b.WriteString(" yes |")
			} else {
				b.WriteString(" - |")
			}
		}
		b.WriteString("\n")
	}
	doctable.Check(t, "../../docs/architecture.md", "./transport/sim -run TestCapsTable -update", *update, doctable.Table{Name: "one-sided", Text: b.String()})
}
