package volume

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
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
	soon("who asks", func() error { return stateError(h) })
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

// TestCallsGiveUpTheDisk: a state directory that stands still keeps no call longer than its caller waits. What is to persist
// and cannot is not done; what is done stays done, and is written down later.
func TestCallsGiveUpTheDisk(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	var still atomic.Bool
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	client.writesBy(func(name string, b []byte) error {
		if still.Load() {
			<-release
		}
		return replaceFile(name, b)
	})
	server.start()
	client.start()
	defer free()
	for _, name := range []string{"disk", "second", "third"} {
		mustExport(t, server.h, memory(name, 1<<20))
	}
	paths := server.twoPaths()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Paths: paths[:1], Persist: true})
	gone := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "second", Persist: true})
	was := file(t, "was", 1<<20)
	was.Persist = true
	mustExport(t, client.h, was)
	more := file(t, "more", 1<<20)
	more.Persist = true
	still.Store(true)
	client.h.saver.mark()

	has := func(name string) bool {
		return slices.ContainsFunc(client.h.Exports(), func(x ExportInfo) bool { return x.Name == name })
	}
	number := func(n int) func() bool { return func() bool { return len(client.h.Mappings()) == n } }
	way := func(n int) func() bool { return func() bool { return len(client.h.Paths()) == n } }
	third := MapSpec{Node: server.node(), Name: "third"}
	for _, c := range []struct {
		what string
		late bool // it says so
		f    func(ctx context.Context) error
		done func() bool // but for that
	}{
		{"map", false, func(ctx context.Context) error { _, err := client.h.Map(ctx, third); return err }, func() bool {
			i, err := client.h.Mapping(third.Node + ":" + third.Name)
			return err == nil && i.State == StateOpen
		}},
		{"unmap", true, func(ctx context.Context) error { return client.h.Unmap(ctx, gone.ID, true) }, number(2)},
		{"export", true, func(ctx context.Context) error { _, err := client.h.Export(ctx, more); return err }, func() bool { return has("more") }},
		{"unexport", true, func(ctx context.Context) error { return client.h.Unexport(ctx, was.Name, false) }, func() bool { return !has("was") }},
		{"set", true, func(ctx context.Context) error {
			_, err := client.h.SetSession(ctx, m.Session, SessionChange{MaxReconnects: 7})
			return err
		}, func() bool { return client.h.Sessions()[0].MaxReconnects == 7 }},
		{"add a path", false, func(ctx context.Context) error { _, err := client.h.AddPath(ctx, m.Session, paths[1]); return err }, way(2)},
		{"remove a path", false, func(ctx context.Context) error { return client.h.RemovePath(ctx, m.Session, paths[1]) }, way(1)},
	} {
		done := make(chan error, 1)
		ctx, giveUp := context.WithCancel(testCtx(t))
		go func() { done <- c.f(ctx) }() // ends when its caller does not wait any more
		eventually(t, c.what, c.done)
		giveUp()
		select {
		case err := <-done:
			if late := errors.Is(err, rdserr.ErrTimeout); late != c.late || err != nil && !late {
				t.Errorf("%s: %v", c.what, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s waits for the disk", c.what)
		}
	}
	free()
	eventually(t, "all is written down", func() bool {
		st := written(t, client)
		return len(st.Exports) == 0 && len(st.Mappings) == 2 && st.Mappings[0].MaxReconnects == 7 && len(st.Mappings[0].Paths) == 1
	})
}

// TestExportThatIsGivenUpWhileItIsWritten: a persistent export that its caller does not wait for any more is not done, and so not there
// after the next start, also where the state was being written with it.
func TestExportThatIsGivenUpWhileItIsWritten(t *testing.T) {
	server := newServerNode(t, freePort(t))
	var still atomic.Bool
	var writes atomic.Int32 // that have ended meanwhile
	writing, release := make(chan struct{}, 1), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	server.writesBy(func(name string, b []byte) error {
		if still.Load() {
			select {
			case writing <- struct{}{}:
			default:
			}
			<-release
			defer writes.Add(1)
		}
		return replaceFile(name, b)
	})
	server.start()
	defer free()
	eventually(t, "what was before is written", func() bool { return !server.h.saver.pending() })
	still.Store(true)
	s := file(t, "disk", 1<<20)
	s.Persist = true
	ctx, giveUp := context.WithCancel(testCtx(t))
	go func() { // ends with the write
		<-writing
		giveUp()
	}()
	if i, err := server.h.Export(ctx, s); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("exported as %+v, %v", i, err)
	}
	if l := server.h.Exports(); len(l) != 0 {
		t.Errorf("given up, and there are %+v", l)
	}
	free()
	eventually(t, "the write has ended", func() bool { return writes.Load() > 0 })
	eventually(t, "nothing of it is written", func() bool { return len(written(t, server).Exports) == 0 })
}
