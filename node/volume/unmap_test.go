package volume

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

// slow is a store that keeps every request until release is closed.
type slow struct {
	blk.Device
	at      chan struct{} // a request has come
	release chan struct{}
}

func (d slow) Submit(batch []*blk.Request) {
	d.at <- struct{}{}
	<-d.release
	d.Device.Submit(batch)
}

func (d slow) Unwrap() blk.Device { return d.Device }

// ended is a user of a volume who waits for one request.
type ended chan error

func (c ended) Complete(batch []*blk.Request) { c <- batch[0].Err }

// TestUnmapOfADeviceThatCannotBeLookedAt: a kernel device of which the daemon cannot tell whether it is mounted, because
// it is not in its /dev, or not its to open, is not taken from below a file system.
func TestUnmapOfADeviceThatCannotBeLookedAt(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD})
	for _, e := range []syscall.Errno{syscall.ENOENT, syscall.EACCES, syscall.EPERM} {
		k.mu.Lock()
		_, k.hidden = heldAfter(m.Device, e)
		k.mu.Unlock()
		err := client.h.Unmap(testCtx(t), m.ID, false)
		is(t, "unmap after "+e.Error(), err, syscall.EBUSY, e.Error())
		is(t, "unmap after "+e.Error(), err, syscall.EBUSY, "--force")
		if k.device(0).conn == nil {
			t.Fatalf("%v: it was detached", e)
		}
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil || k.device(0).conn != nil {
		t.Errorf("by force: %v", err)
	}
}

// TestHeld: what opening a device tells. Where nobody can look it is an error, and where there is no device nobody has it.
func TestHeld(t *testing.T) {
	for err, want := range map[error]bool{nil: false, syscall.ENXIO: false, syscall.ENODEV: false, syscall.EBUSY: true} {
		if held, err := heldAfter("/dev/nbd0", err); err != nil || held != want {
			t.Errorf("%v, %v; want %v", held, err, want)
		}
	}
	for _, e := range []error{syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.EMFILE} {
		if held, err := heldAfter("/dev/nbd0", e); held || !errors.Is(err, e) {
			t.Errorf("%v: %v, %v", e, held, err)
		}
	}
	if held, err := heldDevice(1<<20 - 1); held || !errors.Is(err, syscall.ENOENT) { // the kernel has no such number
		t.Errorf("a device that is not in /dev: %v, %v", held, err)
	}
}

// TestUnmapWithARequestAtTheServer: a mapping that nobody uses any more, but for a request
// that the server is slow to answer, is ended all the same. When the answer comes the
// session, which goes on for others, forgets the volume.
func TestUnmapWithARequestAtTheServer(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	at, release := make(chan struct{}, 1), make(chan struct{})
	server.wrap = func(name string, d blk.Device) blk.Device {
		if name == "slow" {
			return slow{d, at, release}
		}
		return d
	}
	server.start()
	client.start()
	mustExport(t, server.h, memory("slow", 1<<20))
	mustExport(t, server.h, memory("well", 1<<20))
	well := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "well"})
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "slow"})
	_, dev, err := client.h.volume(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	request := make(ended, 1)
	dev.Submit([]*blk.Request{{Op: blk.OpRead, Len: 4096, Buf: make([]byte, 4096), Queue: request}})
	<-at
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	if n := len(client.h.Mappings()); n != 1 {
		t.Errorf("%d mappings, want the one that is still there", n)
	}
	close(release) // what the server has comes back in the server's time
	<-request
	eventually(t, "the session forgets the volume", func() bool {
		defer dev.c.look()()
		return len(dev.c.rn.Volumes()) == 1
	})
	if err := writePattern(open(t, well), 0, 64<<10, 1, 4096); err != nil {
		t.Errorf("another volume of the session: %v", err)
	}
}

// TestForceUnmapHoldsUpNobody: a volume whose store stands still is unmapped by force while a write of
// it is at the store, sent on a path that is lost. Other volumes of the session go on meanwhile; this
// one cannot be mapped again before that write has ended.
func TestForceUnmapHoldsUpNobody(t *testing.T) {
	server, client, s, m := withFaults(t, memory("stuck", 1<<20), MapSpec{})
	mustExport(t, server.h, memory("well", 1<<20))
	well := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "well"})
	eventually(t, "two paths", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 2 })
	s.add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 8192, Len: 4096, Stall: true})
	write := func(id string, off uint64) (*volumeDevice, ended) {
		_, dev, err := client.h.volume(id)
		if err != nil {
			t.Fatal(err)
		}
		done := make(ended, 1)
		dev.Submit([]*blk.Request{{Op: blk.OpWrite, Off: off, Len: 4096, Buf: make([]byte, 4096), Queue: done}})
		return dev, done
	}
	dev, stuck := write(m.ID, 8192)
	eventually(t, "it is at the store", func() bool { return s.held() == 1 })
	for _, p := range client.h.Paths() {
		if p.Writes > 0 {
			if err := client.h.DisconnectPath(testCtx(t), p.Session, p.PathSpec); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "its path is lost", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 1 })
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	_, other := write(well.ID, 0)
	select {
	case err := <-other:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("another volume of the session waits for the store")
	}
	again := MapSpec{Node: server.node(), Name: "stuck"}
	if s.held() == 1 {
		_, err := client.h.Map(testCtx(t), again)
		is(t, "mapped before it has ended", err, syscall.EBUSY, "still being unmapped")
	}
	s.heal()
	if err := <-stuck; !errors.Is(err, blk.ErrClosed) {
		t.Errorf("the write ended with %v", err)
	}
	eventually(t, "the session forgets the volume", func() bool {
		defer dev.c.look()()
		return len(dev.c.rn.Volumes()) == 1
	})
	mustMap(t, client.h, again)
}

// TestJoinWithAPathTooMany: a volume that is mapped over a session that is there, and asks
// for a path that this cannot have, is refused and keeps nothing of the session; one that
// asks for the paths which the session has is mapped.
func TestJoinWithAPathTooMany(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	mustExport(t, server.h, memory("b", 1<<20))
	paths := []PathSpec{{Dst: server.node()}}
	for n := range maxPaths - 1 { // nobody is there
		paths = append(paths, PathSpec{Dst: fmt.Sprintf("127.0.77.%d", n+1)})
	}
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Paths: paths})
	_, dev, err := client.h.volume(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	refs := func() int {
		client.h.mu.Lock()
		defer client.h.mu.Unlock()
		return dev.c.refs
	}
	was := refs()
	_, err = client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "b", Paths: []PathSpec{{Dst: "127.0.78.1"}}})
	is(t, "one path too many", err, rdserr.ErrTooMany.Errno, "paths already")
	if n := refs(); n != was || len(client.h.Mappings()) != 1 {
		t.Errorf("%d users of the session instead of %d, %d mappings", n, was, len(client.h.Mappings()))
	}
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "b", Paths: paths}) // which it has
	if n := len(client.h.Paths()); n != maxPaths {
		t.Errorf("the session has %d paths, want %d", n, maxPaths)
	}
}

// TestUnmapBesideTheEnd: a mapping that is being unmapped as the Host ends is unmapped, and no device of it is left that
// the next Host does not know.
func TestUnmapBesideTheEnd(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	client.h.mu.Lock()
	m := client.h.mappings[0]
	m.ending = true // Unmap has begun
	client.h.mu.Unlock()
	m.leave(testCtx(t)) // and Close is faster
	m.end(true)
	select {
	case <-m.gone:
	default:
		t.Error("who unmaps it waits for ever")
	}
	if attached, _ := k.status(nbd.AnyDevice); attached[0] {
		t.Error("its device stays")
	}
	client.stop()
	if st := written(t, client); len(st.Mappings) != 0 {
		t.Errorf("written down: %+v", st.Mappings)
	}
}
