package volume

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// closing is a store that has its last user close it before it is resized.
type closing struct {
	blk.Device
	once   *sync.Once
	unmap  func()
	closed chan struct{}
}

func (d *closing) Unwrap() blk.Device { return d.Device }

func (d *closing) Close() error {
	defer close(d.closed)
	return d.Device.Close()
}

func (d *closing) Resize(size uint64) error {
	d.once.Do(func() {
		d.unmap()
		<-d.closed
	})
	r, _ := blk.As[blk.Resizer](d.Device)
	return r.Resize(size)
}

// TestResizeWhileTheLastUserGoes: that a store is closed under a resize is no failure of it.
func TestResizeWhileTheLastUserGoes(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	var once sync.Once
	var m MappingInfo
	server.wrap = func(name string, d blk.Device) blk.Device {
		return &closing{d, &once, func() {
			if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
				t.Error(err)
			}
		}, make(chan struct{})}
	}
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	if n, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil || n != 16<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"}); m.Info.Size != 16<<20 {
		t.Errorf("%d bytes", m.Info.Size)
	}
}

// heldResize is a store that does not get its size before release is closed.
type heldResize struct {
	blk.Device
	asked, release chan struct{}
}

func (d *heldResize) Unwrap() blk.Device { return d.Device }

func (d *heldResize) Resize(size uint64) error {
	close(d.asked)
	<-d.release
	r, _ := blk.As[blk.Resizer](d.Device)
	return r.Resize(size)
}

// TestResizeThatWasGivenUp: a resize whose caller did not wait for a slow store is told, and known, once
// it has come to pass.
func TestResizeThatWasGivenUp(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	asked, release := make(chan struct{}), make(chan struct{})
	server.wrap = func(_ string, d blk.Device) blk.Device { return &heldResize{d, asked, release} }
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	c, stop := server.h.Watch(FromNow)
	defer stop()
	ctx, giveUp := context.WithCancel(testCtx(t))
	go func() { // ends with the store's first question
		<-asked
		giveUp()
	}()
	if n, err := server.h.ResizeExport(ctx, "disk", 16<<20); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("given up: %d bytes, %v", n, err)
	}
	close(release)
	told := testCtx(t)
	for size := uint64(0); size == 0; {
		select {
		case ev := <-c:
			if ev.Kind == EventResize {
				size = ev.Size
			}
			if size != 0 && size != 16<<20 {
				t.Errorf("told are %d bytes", size)
			}
		case <-told.Done():
			t.Fatal("nobody was told")
		}
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody has it open", func() bool { return len(server.h.srv.openVolumes()) == 0 })
	if list := server.h.Exports(); list[0].Size != 16<<20 {
		t.Errorf("it is said to have %d bytes", list[0].Size)
	}
	server.h.ev.add(Event{Kind: "end"})
	for ev := range c {
		if ev.Kind == EventResize {
			t.Errorf("told again: %+v", ev)
		}
		if ev.Kind == "end" {
			break
		}
	}
}

// TestGrowLosesNothing: what is remembered of a store, by the host or by a device that has it
// open, does not count. Others have made it larger.
func TestGrowLosesNothing(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	s := file(t, "disk", 4<<20)
	mustExport(t, server.h, s)
	mustExport(t, server.h, memory("mem", 4<<20))
	for _, mapped := range []bool{false, true} {
		if mapped {
			mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
		}
		has, err := server.h.GrowExport(ctx, "disk", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(s.Path, int64(has+8<<20)); err != nil {
			t.Fatal(err)
		}
		_, err = server.h.GrowExport(ctx, "disk", has+4<<20)
		is(t, "less than it has", err, syscall.EINVAL, "would be lost")
		if st, err := os.Stat(s.Path); err != nil || uint64(st.Size()) != has+8<<20 {
			t.Errorf("mapped %v: %v, %v", mapped, st, err)
		}
		if n, err := server.h.GrowExport(ctx, "disk", has+12<<20); err != nil || n != has+12<<20 {
			t.Errorf("mapped %v: %d bytes, %v", mapped, n, err)
		}
	}
	_, err := server.h.GrowExport(ctx, "mem", 2<<20)
	is(t, "memory", err, syscall.EINVAL, "would be lost")
	if n, err := server.h.ResizeExport(ctx, "mem", 2<<20); err != nil || n != 2<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestResizesFollowEachOther: one that was given up, because the store is slow, does not cut off what a later one has
// added, under whatever name the store was meant.
func TestResizesFollowEachOther(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	asked, release := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	var first sync.Once
	server.wrap = func(name string, d blk.Device) blk.Device {
		if name != "disk" {
			return d
		}
		return &slowOnce{d, &first, &heldResize{d, asked, release}}
	}
	server.start()
	client.start()
	defer free()
	s := file(t, "disk", 4<<20)
	s.Shared = true
	mustExport(t, server.h, s)
	s.Name = "again"
	mustExport(t, server.h, s)
	for _, name := range []string{"disk", "again"} {
		mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Session: name})
	}
	ctx, giveUp := context.WithCancel(testCtx(t))
	go func() { // ends with the store's first question
		<-asked
		giveUp()
	}()
	if _, err := server.h.GrowExport(ctx, "disk", 8<<20); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("given up: %v", err)
	}
	done := make(chan error, 1)
	go func() { // ends after the first, if not before
		n, err := server.h.GrowExport(testCtx(t), "again", 16<<20)
		if err == nil && n != 16<<20 {
			t.Errorf("%d bytes", n)
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("the second is done before the first: %v", err)
		done <- nil
	case <-time.After(100 * time.Millisecond):
	}
	free()
	if err := <-done; err != nil {
		t.Error(err)
	}
	eventually(t, "its size", func() bool { st, err := os.Stat(s.Path); return err == nil && st.Size() == 16<<20 })
}

// slowOnce is a store whose first resize is slow's.
type slowOnce struct {
	blk.Device
	first *sync.Once
	slow  blk.Resizer
}

func (d *slowOnce) Unwrap() blk.Device { return d.Device }

func (d *slowOnce) Resize(size uint64) error {
	r, _ := blk.As[blk.Resizer](d.Device)
	d.first.Do(func() { r = d.slow })
	return r.Resize(size)
}

// TestResizeThatIsNotWantedAnyMore: one that waited for another, and whose caller has gone, is not done: it would cut off what is
// there by then. Nor is one of an export that has ended meanwhile, whose file may be another's.
func TestResizeThatIsNotWantedAnyMore(t *testing.T) {
	t.Run("given up", func(t *testing.T) {
		resizeNotWanted(t, syscall.ETIMEDOUT, func(_ *Host, giveUp func()) error { giveUp(); return nil })
	})
	t.Run("of an export that has ended", func(t *testing.T) {
		resizeNotWanted(t, syscall.ENOENT, func(h *Host, _ func()) error { return h.Unexport(testCtx(t), "also", false) })
	})
}

func resizeNotWanted(t *testing.T, errno syscall.Errno, end func(h *Host, giveUp func()) error) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	asked, release := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	var first sync.Once
	server.wrap = func(_ string, d blk.Device) blk.Device { return &slowOnce{d, &first, &heldResize{d, asked, release}} }
	server.start()
	client.start()
	defer free()
	s := file(t, "disk", 4<<20)
	mustExport(t, server.h, s)
	s.Name = "also"
	mustExport(t, server.h, s)
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	waiting := func(n int) func() bool {
		return func() bool {
			w := server.h.waits
			w.mu.Lock()
			defer w.mu.Unlock()
			p := w.paths[s.Path]
			return p == nil && n == 0 || p != nil && maxPathWaits-len(p.slots) == n
		}
	}
	resize := func(ctx context.Context, name string, size uint64) <-chan error {
		done := make(chan error, 1)
		go func() { // ends with the call
			_, err := server.h.ResizeExport(ctx, name, size)
			done <- err
		}()
		return done
	}
	grows := resize(testCtx(t), "disk", 8<<20)
	<-asked
	ctx, giveUp := context.WithCancel(testCtx(t))
	defer giveUp()
	shrinks := resize(ctx, "also", 1<<20)
	eventually(t, "it waits for the other", waiting(2))
	if err := end(server.h, giveUp); err != nil {
		t.Error(err)
	}
	if errno == syscall.ETIMEDOUT { // its caller waits no more
		is(t, "the one that waited", <-shrinks, errno, "in time")
		shrinks = nil
	}
	free()
	if err := <-grows; err != nil {
		t.Error(err)
	}
	if shrinks != nil {
		is(t, "the one that waited", <-shrinks, errno, "not exported")
	}
	eventually(t, "none is under way", waiting(0))
	if st, err := os.Stat(s.Path); err != nil || st.Size() != 8<<20 {
		t.Errorf("it has %d bytes, %v", st.Size(), err)
	}
}

// TestUnexportWaitsForResizes: an export does not end while its store is being resized, for that would cut off what another server of the
// store has added since; one that is forced to an end is not resized by its path, which may be another's file by then.
func TestUnexportWaitsForResizes(t *testing.T) {
	for _, force := range []bool{false, true} {
		port := freePort(t)
		server, client := newServerNode(t, port), newClientNode(t, port)
		asked, release := make(chan struct{}), make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		var first sync.Once
		server.wrap = func(_ string, d blk.Device) blk.Device {
			var slow blk.Resizer = &heldResize{d, asked, release}
			if force {
				slow = closedResize{asked, release}
			}
			return &slowOnce{d, &first, slow}
		}
		server.start()
		client.start()
		t.Cleanup(free)
		s := file(t, "disk", 4<<20)
		mustExport(t, server.h, s)
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
		done := make(chan error, 1)
		go func() { // ends with the store
			_, err := server.h.ResizeExport(testCtx(t), "disk", 1<<20)
			done <- err
		}()
		<-asked
		if !force {
			if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
				t.Error(err)
			}
			is(t, "while it is being resized", server.h.Unexport(testCtx(t), "disk", false), syscall.EBUSY, "being resized")
		} else if err := server.h.Unexport(testCtx(t), "disk", true); err != nil {
			t.Error(err)
		}
		free()
		err, size := <-done, int64(1<<20)
		if force {
			is(t, "the resize", err, syscall.ENOENT, "not exported")
			size, err = 4<<20, nil
		} else if e := server.h.Unexport(testCtx(t), "disk", false); e != nil {
			t.Error(e)
		}
		if st, e := os.Stat(s.Path); err != nil || e != nil || st.Size() != size {
			t.Errorf("force %v: %v; it has %d bytes, %v", force, err, st.Size(), e)
		}
	}
}

// closedResize is a store that is closed while it is asked.
type closedResize struct{ asked, release chan struct{} }

func (d closedResize) Resize(size uint64) error {
	close(d.asked)
	<-d.release
	return blk.ErrClosed
}
