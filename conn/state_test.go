package conn

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/doctable"
)

// cells is the life of a lane as it is meant to be, one row for each state, one
// column for each event: the state that follows, "." where nothing changes
// legally, "-" where the event is illegal.
const cells = `
               Want        Idle  Link  Fail   Lost   Drop
Down           Connecting  .     Up    -      -      .
Connecting     .           -     Up    Error  -      .
Up             .           -     -     -      Error  Disconnecting
Disconnecting  .           -     -     -      Error  .
Error          Connecting  Down  Up    -      -      .
`

// inState makes a lane and brings it into state s by events alone.
func inState(t *testing.T, s State) (*world, *Lane) {
	w := newWorld(t, "10.0.0.1", "10.0.0.2", nil)
	p := w.c.lane(0)
	for _, e := range map[State][]Event{
		Down: nil, Connecting: {EvWant}, Up: {EvWant, EvLink}, Disconnecting: {EvWant, EvLink, EvDrop}, Error: {EvWant, EvFail},
	}[s] {
		if !p.event(w.now, e) {
			t.Fatalf("no way to %v: %v is illegal in %v", s, e, p.state)
		}
	}
	if p.state != s {
		t.Fatalf("%v instead of %v", p.state, s)
	}
	w.take()
	w.com.Actions = nil
	return w, p
}

// TestEveryCell walks the whole table.
func TestEveryCell(t *testing.T) {
	rows := strings.Split(strings.TrimSpace(cells), "\n")
	if len(rows) != int(numStates)+1 || len(strings.Fields(rows[0])) != int(numEvents) {
		t.Fatalf("%d states and %d events, the test knows other ones", numStates, numEvents)
	}
	legal := 0
	for s := range numStates {
		row := strings.Fields(rows[s+1])
		for e := range numEvents {
			name := fmt.Sprintf("%v in %v", e, s)
			if row[0] != s.String() || strings.Fields(rows[0])[e] != e.String() {
				t.Fatalf("%s: the test's table says %s in %s", name, strings.Fields(rows[0])[e], row[0])
			}
			want := row[e+1]
			w, p := inState(t, s)
			ok := p.event(w.now, e)
			if ok != (want != "-") {
				t.Errorf("%s: legal %v", name, ok)
				continue
			}
			if !ok {
				if w.ctr.IllegalEvent != 1 || p.state != s || w.take() != "" || len(w.com.Actions) != 0 {
					t.Errorf("%s: an illegal event is counted and does nothing; now %v, %d counted, %d orders", name, p.state, w.ctr.IllegalEvent, len(w.com.Actions))
				}
				continue
			}
			legal++
			next := s.String()
			if want != "." {
				next = want
			}
			if p.state.String() != next {
				t.Errorf("%s: %v, want %s", name, p.state, next)
			}
			told := w.take()
			if changed := fmt.Sprintf("lane 0: %v > %s", s, next); (told == changed) != (s.String() != next) {
				t.Errorf("%s: the owner was told %q", name, told)
			}
			w.checkLane(name, p)
		}
	}
	if n := len(Table()); n != legal {
		t.Errorf("Table has %d rows of %d legal cells", n, legal)
	}
}

// checkLane states what is true of a lane in each state.
func (w *world) checkLane(name string, p *Lane) {
	w.t.Helper()
	var kinds []string
	for _, a := range w.com.Actions {
		kinds = append(kinds, a.Kind.String())
	}
	fail := func(format string, a ...any) { w.t.Errorf("%s: "+format, append([]any{name}, a...)...) }
	switch p.state {
	case Connecting:
		if p.retryAt == Never || w.armed > p.retryAt {
			fail("an attempt without an end")
		}
	case Error:
		if p.retryAt == Never || w.armed > p.retryAt {
			fail("nothing will try again")
		}
	case Up:
		if !p.probed && !p.ready {
			fail("a link that nobody asks anything")
		}
	case Down:
		if p.retryAt != Never && p.retryAt > w.now {
			fail("a timer runs while nothing is under way")
		}
	}
	if p.state != Up && p.ready {
		fail("ready without a link")
	}
	if p.state == Disconnecting && strings.HasSuffix(name, "in Up") && !strings.Contains(strings.Join(kinds, " "), "close") {
		fail("the link is not closed: %v", kinds)
	}
}

// TestLateEvents: what names another attempt or link than the current one is
// ignored, in every state.
func TestLateEvents(t *testing.T) {
	for s := range numStates {
		w, p := inState(t, s)
		attempt := p.attempt
		for _, g := range []uint64{0, attempt + 1, attempt + 1000} {
			if g == attempt {
				continue
			}
			if p.Connected(w.now, g) {
				t.Errorf("%v: connected by attempt %d, current is %d", s, g, attempt)
			}
			p.DialFailed(w.now, g, nil)
			if g != 0 || len(p.waiting) > 0 {
				p.Lost(w.now, g, 1<<40, nil)
			}
			p.Acked(w.now, g, 1<<40)
			fr := w.frame([]string{"data", "1>2", "seq=1"})
			if p.Receive(w.now, g, &fr) == nil {
				t.Errorf("%v: took a frame of link %d, current is %d", s, g, attempt)
			}
			p.ReceivedAll(w.now, g)
		}
		if p.state != s || p.attempt != attempt || len(w.com.Actions) != 0 || w.ctr.IllegalEvent != 0 || w.ctr.ProtocolError != 0 {
			t.Errorf("%v: late events led to %v, %d orders", s, p.state, len(w.com.Actions))
		}
	}
}

// TestBackoff: the first attempt after a loss comes at once, later ones at
// random below a bound that doubles up to ReconnectMax.
func TestBackoff(t *testing.T) {
	w, p := inState(t, Error)
	bound := w.cfg.ReconnectMin
	spread := false
	for i := range 40 {
		d := p.retryAt - w.now
		switch {
		case i == 0 && d != 0:
			t.Errorf("the first attempt waits %v", d)
		case i > 0 && (d < 0 || d > bound):
			t.Errorf("attempt %d waits %v, at most %v", i, d, bound)
		case i > 3 && d > bound/4 && d < 3*bound/4:
			spread = true
		}
		if i > 0 {
			bound = min(2*bound, w.cfg.ReconnectMax)
		}
		w.now += d
		p.event(w.now, EvWant)
		p.event(w.now, EvFail)
	}
	if !spread {
		t.Error("the delays are not spread")
	}
}

// TestFlap: a peer that accepts and closes at once is not dialled in a tight loop.
func TestFlap(t *testing.T) {
	w, p := inState(t, Down)
	w.send(5000, 4000, 1, false)
	dials := 0
	for until := w.now + 60*time.Second; w.now < until; {
		switch p.state {
		case Connecting:
			dials++
			p.Connected(w.now, p.attempt)
		case Up:
			p.Lost(w.now, p.attempt, 0, nil)
		default:
			w.now = max(w.now, w.armed)
			w.armed = Never
			w.c.Tick(w.now)
		}
		w.settle()
	}
	if dials > 100 {
		t.Errorf("%d connections in a minute", dials)
	}
	w.take()
}

// TestTableInDocs: docs/protocol.md shows the table as it is (-update writes it).
func TestTableInDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| state | event | next state | what is done |\n|---|---|---|---|\n")
	for _, r := range Table() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r[0], r[1], r[2], r[3])
	}
	inDocs(t, "lane table", b.String())
}

// TestWordsOfTheTable: the words beside the table in docs/protocol.md name the events that there are, and the picture
// these and the states.
func TestWordsOfTheTable(t *testing.T) {
	page, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- lane table: end -->\n")
	text, _, _ = strings.Cut(text, "\n## ")
	parts := strings.Split(text, "```")
	if len(parts) != 3 {
		t.Fatalf("%d parts, not words, a picture, and words", len(parts))
	}
	named := func(re, in string, of int) (l []string) {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(in, -1) {
			l = append(l, m[of])
		}
		slices.Sort(l)
		return slices.Compact(l)
	}
	events := slices.Clone(eventNames[:])
	slices.Sort(events)
	if got := named(`\*(\w+)\*`, parts[0], 1); !slices.Equal(got, events) {
		t.Errorf("the words explain %v, and there are %v", got, events)
	}
	all := append(events, stateNames[:]...)
	slices.Sort(all)
	if got := named(`\w\w+`, parts[1], 0); !slices.Equal(got, all) {
		t.Errorf("the picture names %v, and there are %v", got, all)
	}
}

// TestMayTableInDocs does the same for what a peer may do.
func TestMayTableInDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| peer | its datagrams and pongs are placed | its pings are answered | its map is believed | our map is told | datagrams are sent | also without an answer to our handshake | speaks as rdsd do |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range MayTable() {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
	}
	inDocs(t, "kinds table", b.String())
}

func inDocs(t *testing.T, what, table string) {
	t.Helper()
	doctable.Check(t, "../docs/protocol.md", "./conn -update", *update, doctable.Table{Name: what, Text: table})
}
