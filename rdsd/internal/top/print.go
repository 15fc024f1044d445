package top

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Options are what `rdsd top` was asked for.
type Options struct {
	Source   Source
	Views    []View // of Print; none: all. Run begins with the first
	Interval time.Duration
	Times    int    // of Print; 0: until the context ends
	Sort     string // a heading; "": as the daemon has it
	Reverse  bool
	Filter   string
}

// Column finds a heading in a view; false: it has none of that name.
func Column(v View, name string) (int, bool) {
	i := slices.Index(tableOf(v, &Shot{Status: emptyStatus}, nil).heads, strings.ToLower(name))
	return i, i >= 0
}

// Headings are the headings of a view.
func Headings(v View) []string { return tableOf(v, &Shot{Status: emptyStatus}, nil).heads }

// Print writes shots as plain text. Rates are those between two shots, so the first
// has none.
func Print(ctx context.Context, w io.Writer, o Options) error {
	views := o.Views
	if len(views) == 0 {
		views = []View{Peers, Sockets, Congestion, Volumes, Problems}
	}
	var before *Shot
	for n := 0; o.Times == 0 || n < o.Times; n++ {
		if n > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(o.Interval):
			}
		}
		now, err := o.Source(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		fmt.Fprintln(w, titleLine(now).text)
		for _, v := range views {
			if err := printView(w, v, now, before, &o); err != nil {
				return err
			}
		}
		before = now
	}
	return nil
}

func printView(w io.Writer, v View, now, before *Shot, o *Options) error {
	t := tableOf(v, now, before)
	t.keep(o.Filter)
	l := newLook()
	l.view = v
	if c, ok := Column(v, o.Sort); ok {
		l.column[v], l.reversed[v] = c, o.Reverse
		t.sort(c, o.Reverse)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s: %d\n", ViewNames[v], len(t.rows))
	if len(t.rows) > 0 {
		widths := t.widths()
		fmt.Fprintln(&b, t.head(widths, &l))
		for _, r := range t.rows {
			fmt.Fprintln(&b, t.text(r, widths))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
