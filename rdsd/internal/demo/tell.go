package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// teller writes the story: lines as things happen and, below them, a table
// that is redrawn on a terminal and repeated every two seconds otherwise.
type teller struct {
	out   io.Writer
	tty   bool
	width int // of the terminal; longer lines of the table are cut
	json  bool
	start time.Time

	mu    sync.Mutex
	show  *show // guarded by mu; what the table is of
	drawn int   // guarded by mu; lines of the table on the screen
	done  chan struct{}
	idle  sync.WaitGroup
}

func newTeller(c Config) *teller {
	return &teller{out: c.Out, tty: c.TTY && !c.JSON, width: c.Width, json: c.JSON, start: time.Now(), done: make(chan struct{})}
}

// say tells one thing that happened.
func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b bytes.Buffer
	t.erase(&b)
	text := fmt.Sprintf(format, args...)
	if t.json {
		t.line(&b, event{time.Since(t.start).Seconds(), text})
	} else {
		fmt.Fprintf(&b, "%6.2fs  %s\n", time.Since(t.start).Seconds(), text)
	}
	if t.tty {
		t.paint(&b)
	}
	t.out.Write(b.Bytes())
}

// event and progress are lines of the JSON form; the last line is a Summary.
type event struct {
	T    float64 `json:"t"` // seconds since the start
	What string  `json:"event"`
}

type progress struct {
	T      float64     `json:"t"`
	Flows  []Account   `json:"flows"`
	Volume DiskAccount `json:"volume"`
}

func (t *teller) line(b *bytes.Buffer, v any) {
	if j, err := json.Marshal(v); err == nil {
		b.Write(append(j, '\n'))
	}
}

// table starts showing the flows of s.
func (t *teller) table(s *show) {
	t.mu.Lock()
	t.show = s
	t.mu.Unlock()
	interval := 2 * time.Second
	if t.tty {
		interval = 200 * time.Millisecond
		t.redraw()
	}
	t.idle.Go(func() { // ended by close
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-t.done:
				return
			case <-tick.C:
			}
			t.redraw()
		}
	})
}

// redraw puts the table where it was, as it stands now.
func (t *teller) redraw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b bytes.Buffer
	t.erase(&b)
	t.paint(&b)
	t.out.Write(b.Bytes())
}

// erase removes the table from the screen. Called with mu held.
func (t *teller) erase(b *bytes.Buffer) {
	if t.tty && t.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\x1b[J", t.drawn)
		t.drawn = 0
	}
}

// paint draws the table. Called with mu held.
func (t *teller) paint(b *bytes.Buffer) {
	switch {
	case t.show == nil:
		return
	case t.json:
		t.line(b, progress{time.Since(t.start).Seconds(), t.show.summary().Flows, t.show.disk.account()})
		return
	}
	for line := range strings.Lines(t.show.table()) {
		if r := []rune(line); t.tty && t.width > 0 && len(r) > t.width {
			line = string(r[:t.width-1]) + "\n" // a wrapped line would not be erased
		}
		b.WriteString(line)
		t.drawn++
	}
}

// finish ends the table and writes the summary.
func (t *teller) finish(sum Summary) {
	t.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	var b bytes.Buffer
	t.erase(&b)
	if t.json {
		t.line(&b, sum)
	} else {
		sum.write(&b)
	}
	t.out.Write(b.Bytes())
}

// close stops redrawing; it may be called twice.
func (t *teller) close() {
	t.mu.Lock()
	select {
	case <-t.done:
	default:
		close(t.done)
	}
	t.mu.Unlock()
	t.idle.Wait()
}

// table is the live state of the show.
func (s *show) table() string {
	tw := newTable()
	tw.AppendHeader(table.Row{"flow", "way", "port", "sent", "delivered", "in flight", "read", "refused"})
	for _, f := range s.all {
		sent, decided := f.accepted.Load(), f.decided()
		tw.AppendRow(table.Row{f.what, s.nameOf(f.from) + " > " + s.nameOf(f.to), f.to.Port(), sent, f.delivered.Load(), sent - min(decided, sent), f.received.Load(), f.refused.Load()})
	}
	v := s.disk.account()
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("\n%s\nvolume: %d writes, %d reads, %d wrong, %d failed\nlink: A says %s, B says %s, round trip %v\n\n", tw.Render(), v.Writes, v.Reads, v.Wrong, v.Failed, known(s.states["A"]), known(s.states["B"]), s.rtt["A"].Round(time.Microsecond))
}

func (s *show) nameOf(a netip.AddrPort) string {
	if a.Addr() == s.a.addr {
		return s.a.name
	}
	return s.b.name
}

func known(state string) string {
	if state == "" {
		return "not connected yet"
	}
	return state
}

func newTable() table.Writer {
	tw := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Format.Header = text.FormatUpper
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	tw.SetStyle(style)
	tw.SuppressTrailingSpaces()
	return tw
}
