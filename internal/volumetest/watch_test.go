package volumetest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// watch keeps the events of a daemon.
type watch struct {
	mu     sync.Mutex
	events []*rdsd.VolumeEvent
	gaps   int
}

func (d *daemon) watch(t testing.TB) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{}
	var wg sync.WaitGroup
	seq := d.vols().Watch(ctx)
	wg.Go(func() {
		for e, err := range seq {
			if err != nil {
				return
			}
			w.mu.Lock()
			if e.Kind == rdsd.EventGap {
				w.gaps++
			}
			w.events = append(w.events, e)
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return w
}

// count is how many events there were that fit.
func (w *watch) count(fits func(*rdsd.VolumeEvent) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if fits(e) {
			n++
		}
	}
	return n
}

// requests is how many went on elsewhere.
func (w *watch) requests() (n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == rdsd.EventFailover {
			n += e.Count
		}
	}
	return n
}

func isFailover(e *rdsd.VolumeEvent) bool { return e.Kind == rdsd.EventFailover && e.Count > 0 }

// state is when the path over p had another state than connected, or again that
// state, for the first time since.
func (w *watch) state(p path, connected bool, since time.Time) (at time.Time, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.events) - 1; i >= 0 && !w.events[i].Time.Before(since); i-- {
		e := w.events[i]
		if e.Kind == rdsd.EventPath && e.Path != nil && e.Path.Dst == p.addr() && (e.State == string(rdsd.PathConnected)) == connected {
			at, ok = e.Time, true
		}
	}
	return at, ok
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	for _, e := range w.events[max(len(w.events)-60, 0):] {
		b.WriteString(e.Time.Format("15:04:05.000 ") + e.Text + "\n")
	}
	return b.String()
}
