package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/rdsd/rdsd/internal/plain"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// style is how a line of a screen looks.
type style int

const (
	normal style = iota
	title
	bad // there is a warning or an error
	tabs
	heading
	chosen
	hint
)

// line is one of a screen.
type line struct {
	text  string
	style style
}

// look is what a user has chosen to see.
type look struct {
	view     View
	column   [numViews]int // to sort by; -1: as the daemon has it
	reversed [numViews]bool
	filter   string
	typing   bool   // the filter
	row      string // the key of the chosen row; "": the first
	detail   bool
	paused   bool
	err      error // of the last attempt to ask
}

func newLook() look {
	var l look
	for v := range l.column {
		l.column[v] = -1
	}
	return l
}

// fixed are the lines that are not rows: title, tabs, headings, hints.
const fixed = 4

// arrangement is what a table depends on.
type arrangement struct {
	now, before *Shot
	view        View
	filter      string
	column      int
	reversed    bool
}

// arranged is a table as it is shown, kept until a shot comes or somebody wants another one: to make that of
// thousands of sockets takes longer than to press a key.
type arranged struct {
	table
	of   arrangement
	wide []int // its columns
}

// take makes the table, unless it is the one that is there.
func (a *arranged) take(l *look, now, before *Shot) {
	of := arrangement{now, before, l.view, l.filter, l.column[l.view], l.reversed[l.view]}
	if a.of == of {
		return
	}
	a.of, a.table = of, tableOf(l.view, now, before)
	a.keep(l.filter)
	a.sort(of.column, of.reversed)
	a.wide = a.widths()
}

// screen puts a shot on width columns and height lines. It returns which row of t is chosen.
func screen(t *arranged, l *look, now, before *Shot, width, height int) (lines []line, at int) {
	if now == nil {
		return fit([]line{{"rdsd top: waiting for the daemon", title}, {problem(l), bad}}, width), 0
	}
	t.take(l, now, before)
	at = max(slices.IndexFunc(t.rows, func(r row) bool { return r.key == l.row }), 0)
	lines = append(lines, titleLine(now), line{tabsText(l.view, now), tabs})
	room := max(height-fixed, 0)
	if l.detail && len(t.rows) > 0 {
		lines = append(lines, line{"", heading})
		detail := t.rows[at].detail()
		for _, d := range detail[:min(len(detail), room)] {
			lines = append(lines, line{d, normal})
		}
	} else {
		lines = append(lines, body(l, t, at, room)...)
	}
	for len(lines) < height-1 {
		lines = append(lines, line{})
	}
	if len(lines) > height-1 {
		lines = lines[:max(height-1, 0)]
	}
	return fit(append(lines, hintLine(l, &t.table, at)), width), at
}

// body are the headings and the rows that there is room for, the chosen one among them.
func body(l *look, t *arranged, at, room int) []line {
	lines := []line{{t.head(t.wide, l), heading}}
	from := 0
	if room > 0 && at >= room {
		from = min(at-room/2, max(len(t.rows)-room, 0))
	}
	for i := from; i < min(from+room, len(t.rows)); i++ {
		s := normal
		if i == at {
			s = chosen
		}
		lines = append(lines, line{t.text(t.rows[i], t.wide), s})
	}
	if len(t.rows) == 0 {
		empty := t.empty
		if l.filter != "" {
			empty = "nothing has " + l.filter + " in it"
		}
		lines = append(lines, line{empty, normal})
	}
	return lines
}

// fit cuts lines at width.
func fit(lines []line, width int) []line {
	for i := range lines {
		lines[i].text = ansi.Truncate(lines[i].text, max(width, 0), "…")
	}
	return lines
}

func titleLine(now *Shot) line {
	st := now.Status
	s := title
	health := "healthy"
	if !st.Healthy {
		s = bad
		counts := map[rdsd.Severity]int{}
		for _, p := range st.Problems {
			counts[p.Severity]++
		}
		health = fmt.Sprintf("%d errors, %d warnings (press 5)", counts[rdsd.SeverityError], counts[rdsd.SeverityWarning])
	}
	return line{plain.Text(fmt.Sprintf("rdsd %s  %s for %s  peers %d, %d up  sockets %d  memory %s of %s  %s", st.Version, st.State, plain.Duration(st.Uptime), st.Peers, st.PeersUp,
		st.Sockets, plain.Bytes(float64(st.MemoryUsedBytes)), plain.Bytes(float64(st.MemoryBudgetBytes)), health)), s}
}

func tabsText(view View, now *Shot) string {
	counts := [numViews]int{len(now.Peers), len(now.Sockets), len(now.Congestion), len(now.Exports) + len(now.Mappings), len(now.Status.Problems)}
	var words []string
	for v := range numViews {
		w := fmt.Sprintf("%d %s %d", v+1, ViewNames[v], counts[v])
		if v == view {
			w = "[" + w + "]"
		} else {
			w = " " + w + " "
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

func problem(l *look) string {
	if l.err == nil {
		return ""
	}
	return plain.Text("no answer, trying again: " + strings.ReplaceAll(l.err.Error(), "\n", " "))
}

func hintLine(l *look, t *table, at int) line {
	switch {
	case l.err != nil:
		return line{problem(l), bad}
	case l.typing:
		return line{"filter: " + l.filter + "_   enter: keep it   esc: none", hint}
	case l.detail:
		return line{"esc: back   up, down: the next one   q: quit", hint}
	}
	words := []string{fmt.Sprintf("%d of %d", min(at+1, len(t.rows)), len(t.rows))}
	if l.filter != "" {
		words = append(words, "filter: "+l.filter)
	}
	if l.paused {
		words = append(words, "PAUSED")
	}
	words = append(words, "1-5: view", "<>: sort", "r: reverse", "/: filter", "enter: more", "space: pause", "q: quit")
	return line{strings.Join(words, "   "), hint}
}

// gap is between columns.
const gap = 2

func (t *table) widths() []int {
	w := make([]int, len(t.heads))
	for i, h := range t.heads {
		w[i] = len(h) + 1 // and the mark of sorting
	}
	for _, r := range t.rows {
		for i, c := range r.cells {
			w[i] = max(w[i], ansi.StringWidth(c.text))
		}
	}
	return w
}

func (t *table) head(widths []int, l *look) string {
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = strings.ToUpper(h)
		if i == l.column[l.view] {
			heads[i] += map[bool]string{false: "v", true: "^"}[l.reversed[l.view]]
		}
	}
	return t.join(heads, widths)
}

func (t *table) text(r row, widths []int) string {
	cells := make([]string, len(r.cells))
	for i, c := range r.cells {
		cells[i] = c.text
	}
	return t.join(cells, widths)
}

func (t *table) join(cells []string, widths []int) string {
	var b strings.Builder
	for i, c := range cells {
		pad := strings.Repeat(" ", max(widths[i]-ansi.StringWidth(c), 0))
		if t.right[i] {
			b.WriteString(pad + c)
		} else {
			b.WriteString(c + pad)
		}
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", gap))
		}
	}
	return strings.TrimRight(b.String(), " ")
}
