package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/rdsd/rdsd/rdsd/internal/image"
)

// progressView is a line of `volume copy --json` before the last one.
type progressView struct {
	Phase   string     `json:"phase"`
	Done    bytesCount `json:"done_bytes"`
	Total   bytesCount `json:"total_bytes"`
	Elapsed duration   `json:"elapsed_ns"`
}

// progress shows a Meter: a bar that is redrawn on a terminal, lines of JSON with
// --json, otherwise nothing.
type progress struct {
	a     *app
	meter *image.Meter
	total int64
	width int // of the terminal; 0: there is none
	start time.Time

	end  chan struct{}
	idle sync.WaitGroup

	phase string    // owned by the goroutine
	since time.Time // owned by the goroutine; when the phase began
}

func (a *app) showProgress(m *image.Meter, total int64) *progress {
	p := &progress{a: a, meter: m, total: total, width: terminalWidth(a.err), start: time.Now(), end: make(chan struct{})}
	p.since = p.start
	every := 100 * time.Millisecond
	switch {
	case a.json:
		every, p.width = time.Second, 0
	case p.width == 0:
		return p
	}
	p.idle.Go(func() { // ended by stop
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-p.end:
				return
			case <-tick.C:
				p.draw(time.Now())
			}
		}
	})
	return p
}

// stop ends it and wipes the bar.
func (p *progress) stop() {
	close(p.end)
	p.idle.Wait()
	if p.width > 0 {
		fmt.Fprint(p.a.err, "\r\x1b[K")
	}
}

func (p *progress) draw(now time.Time) {
	phase, done := p.meter.Phase(), min(p.meter.Done.Load(), p.total)
	if p.a.json {
		writeNDJSON(p.a.out, progressView{phase, bytesCount(done), bytesCount(p.total), duration(now.Sub(p.start))})
		return
	}
	if phase != p.phase {
		p.phase, p.since = phase, now
	}
	fmt.Fprintf(p.a.err, "\r\x1b[K%s", bar(phase, done, p.total, now.Sub(p.since), p.width))
}

// bar is a progress bar of at most width columns.
func bar(phase string, done, total int64, took time.Duration, width int) string {
	share := 1.0
	if total > 0 {
		share = float64(done) / float64(total)
	}
	text := fmt.Sprintf(" %3.0f%%  %s of %s", 100*share, bytesCount(done), bytesCount(total))
	if seconds := took.Seconds(); seconds > 0.3 && done > 0 {
		rate := float64(done) / seconds
		text += fmt.Sprintf("  %s/s", bytesCount(rate))
		if left := float64(total-done) / rate; left < 360_000 {
			text += fmt.Sprintf("  %v left", time.Duration(left*float64(time.Second)).Round(time.Second))
		}
	}
	head := fmt.Sprintf("%-9s ", phase)
	if room := min(width-len(head)-len(text)-3, 40); room >= 5 {
		full := int(share * float64(room))
		head += "[" + strings.Repeat("#", full) + strings.Repeat("-", room-full) + "]"
	}
	if line := head + text; len(line) < width {
		return line
	}
	return (head + text)[:max(0, min(len(head+text), width-1))]
}

// terminalWidth is 0 when w is no terminal.
func terminalWidth(w io.Writer) int {
	f, ok := fileOf(w)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		return 80
	}
	return width
}
