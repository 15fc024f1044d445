package volume

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
)

// stillDisk is a directory that stands still while something is written to it, until release is
// closed.
type stillDisk struct {
	Disk
	release <-chan struct{}
	closed  *atomic.Bool
}

func (d stillDisk) Write(b []byte) error {
	<-d.release
	return d.Disk.Write(b)
}

func (d stillDisk) Close() {
	d.Disk.Close()
	d.closed.Store(true)
}

// TestStateThatStandsStill: a state directory that stands still keeps neither the start nor the
// stop, nor who asks how it is. A mapping that has to be written down first waits, and stays to
// the next Host what it was.
func TestStateThatStandsStill(t *testing.T) {
	for _, boot := range []string{"one", "two"} { // of the second start
		t.Run(boot, func(t *testing.T) { stateStandsStill(t, boot) })
	}
}

func stateStandsStill(t *testing.T, boot string) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	client.boot = "one"
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	user := open(t, m)
	if err := errors.Join(writePattern(user, 0, 4096, 1, 4096), user.Flush()); err != nil {
		t.Fatal(err)
	}
	user.Close()
	client.stop()

	soon := func(what string, f func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- f() }() // ends when the disk does
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s waits for the disk", what)
		}
	}
	release := make(chan struct{})
	defer func() {
		if t.Failed() {
			close(release)
		}
	}()
	var closed atomic.Bool
	var h *Host
	soon("the start", func() error {
		h = hasty(client, func(m *Machine) {
			m.Boot = boot
			m.Disk = func(dir string) (Disk, error) {
				d, err := openDisk(dir)
				return stillDisk{d, release, &closed}, err
			}
		})
		return nil
	})
	soon("who asks", h.StateError)
	eventually(t, "the mapping waits", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		m := h.mappings[0]
		return len(m.turn.free) == 0 && (boot == "one" || m.stage == opened)
	})
	if c, err := nbd.DialURI(testCtx(t), m.URI); err == nil {
		c.Close()
		t.Error("programs can write while the state says that all was flushed, or nobody is there")
	}
	soon("the stop", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := h.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stop: %v", err)
		}
		return nil
	})
	close(release)
	eventually(t, "the rest has ended", closed.Load)
	if st := written(t, client); st.Running || len(st.Mappings) != 1 || !st.Mappings[0].Flushed {
		t.Errorf("the next Host finds %+v", st)
	}
	client.boot = boot
	client.start()
	c, _ := opensAgain(t, m)
	if err := errors.Join(checkPattern(c, 0, 4096, 1, 4096), c.Flush()); err != nil {
		t.Error(err)
	}
}
