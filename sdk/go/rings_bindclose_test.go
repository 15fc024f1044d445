//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// openHere is how many descriptors and mappings of rings this process has.
func openHere(t *testing.T) (fds, maps int) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(names), strings.Count(string(text), "rdsd-ring")
}

func wantOpenHere(t *testing.T, fds, maps int) {
	t.Helper()
	eventually(t, "as many descriptors and mappings as before", func() bool {
		f, m := openHere(t)
		return f <= fds && m <= maps
	})
}

// holdBound has the daemon keep Bound until go is closed; begun tells of each Mapped.
func (d *ringDaemon) holdBound() (begun chan struct{}, goOn chan struct{}) {
	begun, goOn = make(chan struct{}, 16), make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mapped = func(*shm.Region) *rdsdv1.Closing {
		begun <- struct{}{}
		<-goOn
		return nil
	}
	return begun, goOn
}

func arrives(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("it does not come: " + what)
	}
}

// over makes a socket over in the moment in which its link is made, as Close may.
func over(s *Socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(rdserr.ErrClosed)
}

// Close beside a Bind over rings: whether the link comes about or not, Bind says that the
// client is closed, and nothing is left of the region.
func TestRingsCloseBesideBind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes files, too
	for what, end := range map[string]func(*Client, *Socket){
		"closed": func(c *Client, s *Socket) { go c.Close() },
		"over":   func(c *Client, s *Socket) { over(s) },
	} {
		t.Run(what, func(t *testing.T) {
			d := newRingDaemon(t)
			c, err := Dial(d.path, WithFrontEnd(Rings))
			if err != nil {
				t.Fatal(err)
			}
			fds, maps := openHere(t)
			begun, goOn := d.holdBound()
			binding := goErr(func() error { _, err := c.Bind(context.Background(), localAddr); return err })
			arrives(t, begun, "Mapped")
			s := onlySocket(t, c)
			end(c, s)
			eventually(t, "the end of the socket", s.isLost)
			close(goOn)
			wantErr(t, waitErr(t, binding), rdserr.ErrClosed)
			arrives(t, s.ended, "the end")
			if err := waitErr(t, goErr(c.Close)); err != nil {
				t.Error(err)
			}
			wantOpenHere(t, fds, maps)
		})
	}
}

// A socket that is over when it has a link again lets go of that as well.
func TestRingsOverWhileReconnecting(t *testing.T) {
	d := newRingDaemon(t)
	fds, maps := openHere(t)
	s := d.bindRing(localAddr)
	begun, goOn := d.holdBound()
	d.stop()
	d.start()
	arrives(t, begun, "Mapped")
	over(s)
	close(goOn)
	arrives(t, s.ended, "the end")
	if err := waitErr(t, goErr(s.Close)); err != nil {
		t.Error(err)
	}
	wantOpenHere(t, fds, maps)
}

// Close ends whatever step a Bind over rings is at.
func TestRingsCloseAtAnyStepOfBind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	d := newRingDaemon(t)
	fds, maps := openHere(t)
	for range 150 {
		c, err := Dial(d.path, WithFrontEnd(Rings))
		if err != nil {
			t.Fatal(err)
		}
		binding := goErr(func() error { _, err := c.Bind(context.Background(), localAddr); return err })
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
		if err := waitErr(t, goErr(c.Close)); err != nil {
			t.Fatal(err)
		}
		// In use: the daemon has not seen yet that the one before is gone.
		if err := waitErr(t, binding); err != nil && !isClosed(err) {
			wantErr(t, err, rdserr.ErrAddrInUse)
		}
	}
	wantOpenHere(t, fds, maps)
}
