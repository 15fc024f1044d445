package tcp

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
)

// overdue has the time of a drain pass, and that of its deaf link, which goes on all the same.
func (e *ends) overdue(t *testing.T) {
	t.Helper()
	e.l.startDrain()
	e.l.drainDue()
	e.l.drain.Stop() // it has fired
	e.l.drainDue()
	if e.l.ended || !e.l.deaf {
		t.Errorf("ended %v, deaf %v", e.l.ended, e.l.deaf)
	}
}

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
	e.on(func() { e.overdue(t) })
	e.pause.Store(false)
	x.Resume()
	e.once(t, "drained behind a receiver", os.ErrDeadlineExceeded)
}

// A link whose drain is over is not ended while something is there to be read, since the reactor may have been
// busy elsewhere; it is once that has been read.
func TestDrainReadsWhatIsThere(t *testing.T) {
	x, y := links(t, newProvider(t))
	e := newEnds(t, x)
	peer := newEnds(t, y)
	x.Start(e)
	e.on(func() {
		if _, err := peer.send(1, 10); err != nil {
			t.Error(err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = unix.IoctlGetInt(e.l.fd, unix.SIOCINQ); err != nil {
				t.Error(err)
				break
			}
		}
		e.overdue(t)
	})
	e.once(t, "drained behind what was there", os.ErrDeadlineExceeded)
}
