package top

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func shot(at time.Time, sent, accepted uint64) *Shot {
	return &Shot{
		At:     at,
		Status: &rdsd.Status{Version: "1", State: "serving", Healthy: true, Problems: []rdsd.Problem{{Code: "a", Severity: rdsd.SeverityNote}, {Code: "b", Severity: rdsd.SeverityError}}},
		Peers: []rdsd.Peer{{Remote: netip.MustParseAddr("10.0.0.2"), State: rdsd.StateUp, Paths: []rdsd.PeerPath{{State: rdsd.StateUp, SentBytes: sent},
			{State: rdsd.StateError, LastError: "refused\x1b[2J", ErrorAge: time.Second, Attempts: 3}}}},
		Sockets:    []rdsd.SocketInfo{{Local: netip.MustParseAddrPort("10.0.0.1:1"), Label: "数据", Accepted: accepted}},
		Congestion: []rdsd.CongestedPort{{Endpoint: netip.MustParseAddrPort("10.0.0.1:1"), Culprits: []rdsd.Culprit{{Source: netip.MustParseAddrPort("10.0.0.2:2")}}}},
		Exports:    []*rdsd.Export{{Name: "disk\x07", Ops: []rdsd.VolumeOp{{Op: "read", Submitted: 5, Completed: 3, Errors: 1}}}},
		Mappings:   []*rdsd.Mapping{{ID: "v1", Info: &rdsd.VolumeInfo{Size: 1 << 20}}},
	}
}

// TestRates: what grew between two shots, per second; nothing without a first shot, for
// what is new, or for what counts anew.
func TestRates(t *testing.T) {
	t0 := time.Unix(100, 0)
	before, now := shot(t0, 1<<20, 100), shot(t0.Add(2*time.Second), 3<<20, 150)
	for _, c := range []struct {
		now, before *Shot
		peer, sock  string
	}{
		{now, before, "1.0 MiB/s", "25/s"},
		{now, nil, "0 B/s", "0/s"},
		{now, shot(t0, 4<<20, 200), "0 B/s", "0/s"},
		{now, &Shot{At: t0}, "0 B/s", "0/s"},
		{now, shot(now.At, 0, 0), "0 B/s", "0/s"},
	} {
		if p, s := peerTable(c.now, c.before).rows[0].cells[5].text, socketTable(c.now, c.before).rows[0].cells[5].text; p != c.peer || s != c.sock {
			t.Errorf("peer %s, socket %s; want %s and %s", p, s, c.peer, c.sock)
		}
	}
}

// TestEveryScreen: each view, as a table and one by one, in windows of every size, with
// and without what is to be shown: it fits, and nothing is on it that a terminal obeys.
func TestEveryScreen(t *testing.T) {
	for _, s := range []*Shot{nil, {Status: &rdsd.Status{}}, shot(time.Unix(1, 0), 0, 0)} {
		for v := range numViews {
			for _, change := range []func(*look){
				func(*look) {}, func(l *look) { l.detail = true }, func(l *look) { l.filter = "10.0" }, func(l *look) { l.filter = "nothing" },
				func(l *look) { l.typing = true }, func(l *look) { l.paused = true }, func(l *look) { l.err = fmt.Errorf("no\n\x1b[2J") },
				func(l *look) { l.column[v] = 0 }, func(l *look) { l.column[v], l.reversed[v] = 3, true },
			} {
				l := newLook()
				l.view = v
				change(&l)
				var shown arranged
				for width := range 60 {
					for _, height := range []int{0, 1, 2, 3, 4, 5, 8, 40} {
						lines, _ := screen(&shown, &l, s, nil, width, height)
						if s != nil && len(lines) != max(height, 1) {
							t.Fatalf("%d lines of %d", len(lines), height)
						}
						for _, x := range lines {
							if ansi.StringWidth(x.text) > width || strings.ContainsAny(x.text, "\x1b\x07\n") {
								t.Fatalf("%q in %d columns", x.text, width)
							}
						}
					}
				}
			}
		}
	}
}

// TestSort: numbers with the largest first, words by the alphabet, problems by how bad
// they are, and a column of the daemon's own order.
func TestSort(t *testing.T) {
	s := shot(time.Unix(1, 0), 0, 0)
	tab := problemTable(s)
	if tab.sort(-1, false); tab.rows[0].cells[1].text != "a" {
		t.Error("the daemon's order is not kept")
	}
	if tab.sort(0, false); tab.rows[0].cells[1].text != "b" {
		t.Error("an error is not before a note")
	}
	if tab.sort(1, false); tab.rows[0].cells[1].text != "a" {
		t.Error("a is not before b")
	}
	if tab.sort(1, true); tab.rows[0].cells[1].text != "b" {
		t.Error("reversed, b is not before a")
	}
	for v := range numViews {
		for i, h := range Headings(v) {
			if c, ok := Column(v, strings.ToUpper(h)); !ok || c != i {
				t.Errorf("%s has the heading %s at %d, not %d", ViewNames[v], h, c, i)
			}
		}
		if got, ok := ViewNamed(ViewNames[v]); !ok || got != v {
			t.Errorf("%s is %v", ViewNames[v], got)
		}
	}
}

// TestArranged: a table is made once, and anew when it would be another one.
func TestArranged(t *testing.T) {
	first, second := shot(time.Unix(1, 0), 0, 0), shot(time.Unix(2, 0), 1000, 10)
	l := newLook()
	var a arranged
	now, before := first, (*Shot)(nil)
	for _, c := range []struct {
		what   string
		change func()
	}{
		{"at first", func() {}}, {"another shot", func() { now, before = second, first }}, {"the one before", func() { before = second }},
		{"another view", func() { l.view = Problems }}, {"a column", func() { l.column[Problems] = 1 }},
		{"reversed", func() { l.reversed[Problems] = true }}, {"a filter", func() { l.filter = "error" }},
	} {
		c.change()
		was := a.rows
		a.take(&l, now, before)
		want := tableOf(l.view, now, before)
		want.keep(l.filter)
		want.sort(l.column[l.view], l.reversed[l.view])
		if len(a.rows) == 0 || len(was) > 0 && &was[0] == &a.rows[0] {
			t.Errorf("%s: %d rows, those from before", c.what, len(a.rows))
		}
		if got, want := fmt.Sprint(cells(a.rows)), fmt.Sprint(cells(want.rows)); got != want {
			t.Errorf("%s: %s; want %s", c.what, got, want)
		}
		same := &a.rows[0]
		l.detail, l.row, l.typing, l.paused = !l.detail, "elsewhere", !l.typing, !l.paused
		if a.take(&l, now, before); &a.rows[0] != same {
			t.Errorf("%s: the table was made again", c.what)
		}
	}
}

func cells(rows []row) (list [][]cell) {
	for _, r := range rows {
		list = append(list, r.cells)
	}
	return list
}

func BenchmarkScreen(b *testing.B) {
	s := &Shot{At: time.Unix(1, 0), Status: &rdsd.Status{}, Sockets: make([]rdsd.SocketInfo, 5000)}
	l := newLook()
	l.view, l.column[Sockets] = Sockets, 7
	var a arranged
	for b.Loop() {
		screen(&a, &l, s, nil, 160, 40)
	}
}
