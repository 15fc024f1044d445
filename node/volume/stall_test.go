package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// TestStuckOpens: as many volumes as there are on a file system that stands still
// are asked for, and one on another one is opened, listed and exported meanwhile.
func TestStuckOpens(t *testing.T) {
	const stuck = 12
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	release := make(chan struct{})
	var at atomic.Int32
	server.wrap = func(name string, d blk.Device) blk.Device {
		if strings.HasPrefix(name, "stuck") {
			at.Add(1)
			<-release
		}
		return d
	}
	server.start()
	client.start()
	ctx := testCtx(t)
	dir := t.TempDir()
	onDisk := func(name string) ExportSpec {
		return ExportSpec{Name: name, Path: filepath.Join(dir, name), Create: true, Size: 1 << 20, Shared: true}
	}
	mustExport(t, server.h, onDisk("well"))
	done := make(chan error, stuck)
	for i := range stuck {
		name := fmt.Sprint("stuck", i)
		mustExport(t, server.h, onDisk(name))
		go func() { // ends when the file system goes on
			_, err := client.h.Map(ctx, MapSpec{Node: server.node(), Name: name, Session: name})
			done <- err
		}()
	}
	eventually(t, "all of them are being opened", func() bool { return at.Load() == stuck })
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := client.h.Map(soon, MapSpec{Node: server.node(), Name: "well"}); err != nil {
		t.Errorf("a volume that is well: %v", err)
	}
	if _, err := server.h.Export(soon, onDisk("another")); err != nil {
		t.Errorf("another export: %v", err)
	}
	if n := len(server.h.Exports()); n != stuck+2 {
		t.Errorf("%d exports", n)
	}
	close(release)
	for range stuck {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no place is left", func() bool {
		defer server.h.srv.look()()
		return len(server.h.srv.places) == 0
	})
}

// stuckClose is a store that is not let go of until release is closed.
type stuckClose struct {
	blk.Device
	held    *atomic.Int32 // that are open
	closing *atomic.Int32 // closes that have begun
	release chan struct{}
}

func (d stuckClose) Unwrap() blk.Device { return d.Device }

func (d stuckClose) Close() error {
	d.closing.Add(1)
	<-d.release
	d.held.Add(-1)
	return d.Device.Close()
}

// TestStuckCloses: a volume whose file system is slow to let go is opened and closed
// again and again. It is not opened anew before it was let go of, so it never takes
// more threads and descriptors; others are opened meanwhile, and it is afterwards.
func TestStuckCloses(t *testing.T) {
	const cycles = 20
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	var held, closing atomic.Int32
	release := make(chan struct{})
	server.wrap = func(name string, d blk.Device) blk.Device {
		if name != "stuck" {
			return d
		}
		held.Add(1)
		return stuckClose{d, &held, &closing, release}
	}
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "stuck", 1<<20))
	mustExport(t, server.h, file(t, "well", 1<<20))
	openAndClose := opener(t, server, client)
	done := make(chan error, 1)
	go func() { // ends when the file system goes on
		for range cycles {
			if err := openAndClose("stuck"); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	eventually(t, "as many are being closed as may be", func() bool { return closing.Load() == maxVisitors })
	for range cycles {
		if err := openAndClose("well"); err != nil {
			t.Fatalf("a volume that is well: %v", err)
		}
	}
	if n := held.Load(); n != maxVisitors {
		t.Errorf("it is held %d times; at most %d are being closed", n, maxVisitors)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	eventually(t, "it is let go of, and no place is left", func() bool {
		defer server.h.srv.look()()
		return held.Load() == 0 && len(server.h.srv.places) == 0
	})
}

// TestWaits: calls wait for the file system of their own path, and for room.
func TestWaits(t *testing.T) {
	w := newWaits(thisMachine(nil))
	ctx, cancel := context.WithCancel(context.Background())
	var leave []func()
	enter := func(ctx context.Context, path string) error {
		f, err := w.enter(ctx, path)
		if err == nil {
			leave = append(leave, f)
		}
		return err
	}
	for i := range maxWaits {
		if err := enter(ctx, fmt.Sprint(i/maxPathWaits)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := enter(ctx, "0"); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "of 0 already") {
		t.Errorf("one more for a path that has its share: %v", err)
	}
	if err := enter(ctx, "new"); !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "file systems already") {
		t.Errorf("one more than there may be: %v", err)
	}
	leave[0]()
	leave = leave[1:]
	if err := enter(context.Background(), "new"); err != nil {
		t.Errorf("after another has left: %v", err)
	}
	for _, f := range leave {
		f()
	}
	if len(w.paths) != 0 || len(w.all) != maxWaits {
		t.Errorf("%d paths and %d calls are left", len(w.paths), len(w.all))
	}
}

// TestStalledStore: of requests to a store that stands still both ends tell, while the path is kept and
// nothing fails.
func TestStalledStore(t *testing.T) {
	server, client, s, m := withFaults(t, memory("disk", 1<<20), MapSpec{IOTimeout: minIOTimeout})
	if m.Oldest != 0 || m.Stalled() {
		t.Errorf("without a request the oldest waits for %v", m.Oldest)
	}
	t.Cleanup(s.heal)
	s.add(blk.Rule{Stall: true})
	c := open(t, m)
	read := make(chan error, 1)
	go func() { // ends when the store goes on
		_, err := c.ReadAt(make([]byte, 4096), 0)
		read <- err
	}()
	eventually(t, "the mapping and its session tell", func() bool {
		m, _ = client.h.Mapping(m.ID)
		return m.Stalled() && client.h.Sessions()[0].Timeouts == 1
	})
	if m.State != StateOpen || m.PathsUp != 2 || m.Oldest < minIOTimeout {
		t.Errorf("%s with %d paths, the oldest request waits for %v", m.State, m.PathsUp, m.Oldest)
	}
	if x, _ := server.h.exportInfo("disk"); x.Oldest < minIOTimeout/2 || x.Stalled() {
		t.Errorf("at the store the oldest is for %v, stalled: %v", x.Oldest, x.Stalled())
	}
	list, err := client.h.Check(testCtx(t), m.ID)
	if err != nil || len(list) != 1 || list[0].Severity != SeverityError || !strings.Contains(list[0].Text, "has not been answered for") {
		t.Errorf("the check: %+v, %v", list, err)
	}
	s.heal()
	if err := <-read; err != nil {
		t.Error(err)
	}
	eventually(t, "nothing waits", func() bool {
		m, _ = client.h.Mapping(m.ID)
		x, _ := server.h.exportInfo("disk")
		return m.Oldest == 0 && x.Oldest == 0
	})
}

// TestStallOutlivesItsSession: that a store stands still is told as long as it does, also when nobody has it open any more.
func TestStallOutlivesItsSession(t *testing.T) {
	for what, end := range map[string]func(server, client *testNode, m MappingInfo) error{
		"the node goes": func(_, client *testNode, _ MappingInfo) error { client.stop(); return nil },
		"it is taken away": func(server, _ *testNode, m MappingInfo) error {
			return server.h.ForceClose(testCtx(t), m.Name, m.Session)
		},
	} {
		for _, where := range []string{"an export", "a root"} {
			t.Run(what+" of "+where, func(t *testing.T) {
				port := freePort(t)
				server, client := newServerNode(t, port), newClientNode(t, port)
				s := server.faults()
				x := file(t, "store", 1<<20)
				if where == "a root" {
					server.cfg.Roots = []RootSpec{{Path: filepath.Dir(x.Path)}}
				}
				server.start()
				t.Cleanup(s.heal)
				client.start()
				if where != "a root" {
					mustExport(t, server.h, x)
				}
				m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: x.Name})
				s.add(blk.Rule{Stall: true})
				c := open(t, m)
				go c.ReadAt(make([]byte, 4096), 0) // ends with the connection
				eventually(t, "the store has it", func() bool { return s.held() == 1 })
				if err := end(server, client, m); err != nil {
					t.Fatal(err)
				}
				var is ExportInfo
				told := func() bool {
					is = ExportInfo{}
					if l := server.h.Exports(); len(l) == 1 {
						is = l[0]
					}
					return is.Oldest > 0
				}
				eventually(t, "nobody has it open", func() bool { return !told() || len(is.Users) == 0 })
				was := is.Oldest
				if is.Name != x.Name || was == 0 {
					t.Fatalf("told as %+v", is)
				}
				eventually(t, "it goes on", func() bool { return told() && is.Oldest > was })
				s.heal()
				eventually(t, "it is over", func() bool { return !told() })
			})
		}
	}
}
