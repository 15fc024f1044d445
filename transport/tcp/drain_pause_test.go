package tcp

import (
	"os"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
)

// A link that a receiver paused when its drain was over ends when that goes on, though nothing more
// is there to be read.
func TestDrainGoesOnAfterAPause(t *testing.T) {
	x, y := links(t, newProvider(t))
	e := newEnds(t, x)
	peer := newEnds(t, y)
	e.pause.Store(true)
	x.Start(e)
	if _, err := peer.send(1, 10); err != nil {
		t.Fatal(err)
	}
	await.Until(t, 10*time.Second, "a receiver is full", func() bool {
		held := false
		e.on(func() { held = e.l.held != nil })
		return held
	})
	e.on(func() {
		e.l.startDrain()
		e.l.drainDue()
		e.l.drain.Stop() // it has fired
		e.l.drainDue()
		if e.l.ended || !e.l.deaf {
			t.Errorf("ended %v, deaf %v", e.l.ended, e.l.deaf)
		}
	})
	e.pause.Store(false)
	x.Resume()
	e.once(t, "drained behind a receiver", os.ErrDeadlineExceeded)
}
