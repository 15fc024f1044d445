package volume

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
)

// count is how many devices there are.
func (k *fakeKernel) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.devices)
}

// nothingLeft checks that a mapping that failed has left nothing, here or at the server.
func nothingLeft(t *testing.T, what string, server, client *testNode, k *fakeKernel) {
	t.Helper()
	if l := client.h.Mappings(); len(l) != 0 {
		t.Errorf("%s: mappings %+v", what, l)
	}
	if n := k.count(); n != 0 {
		t.Errorf("%s: %d kernel devices", what, n)
	}
	if l := client.h.Sessions(); len(l) != 0 {
		t.Errorf("%s: sessions %+v", what, l)
	}
	eventually(t, what+": the server has closed it", func() bool { return len(server.h.srv.openVolumes()) == 0 && len(server.h.Sessions()) == 0 })
}

// TestMappingThatFailsOnTheWay: each step from the connection to the state on disk fails
// once. Map returns why, what was done before is undone, and the next Map, of a writer,
// goes through: nothing of the first is in its way.
func TestMappingThatFailsOnTheWay(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	good := client.h.drv
	state := filepath.Join(client.cfg.StateDir, stateFile)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unwritable := func() {
		os.Remove(state)
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what  string
		spec  MapSpec
		fail  func(d *driver)
		errno syscall.Errno // 0: any
		says  string
	}{
		{"no driver", MapSpec{As: AsNBD}, func(d *driver) { d.present = func() error { return syscall.EOPNOTSUPP } }, syscall.EOPNOTSUPP, ""},
		{"a device in use", MapSpec{As: AsNBD, Device: "/dev/nbd5"}, func(d *driver) { d.connect = func(int, nbd.Attach) (int, error) { return 0, syscall.EBUSY } }, syscall.EBUSY, "/dev/nbd5 is in use"},
		{"a kernel that refuses", MapSpec{As: AsNBD}, func(d *driver) { d.connect = func(int, nbd.Attach) (int, error) { return 0, syscall.EPERM } }, syscall.EPERM, "attach"},
		{"a socket that is a file", MapSpec{Socket: plain}, nil, syscall.EEXIST, "another kind"},
		{"a device that cannot be written down", MapSpec{As: AsNBD}, func(*driver) { unwritable() }, 0, ""},
		{"a socket that cannot be written down", MapSpec{Persist: true}, func(*driver) { unwritable() }, 0, ""},
	} {
		drv := good
		if c.fail != nil {
			c.fail(&drv)
		}
		client.h.drv = drv
		c.spec.Node, c.spec.Name = server.node(), "disk"
		_, err := client.h.Map(testCtx(t), c.spec)
		if err == nil || c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("%s: %v, want %v", c.what, err, c.errno)
		} else if c.says != "" {
			is(t, c.what, err, c.errno, c.says)
		}
		nothingLeft(t, c.what, server, client, k)
		client.h.drv = good
		if st, err := os.Stat(state); err == nil && st.IsDir() {
			os.Remove(state)
		}
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
		if err := writePattern(&disk{k: k}, 0, 4096, 1, 4096); err != nil {
			t.Errorf("%s: afterwards: %v", c.what, err)
		}
		if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
			t.Errorf("%s: afterwards: %v", c.what, err)
		}
		nothingLeft(t, c.what+", afterwards", server, client, k)
	}
	// These fail, and the mapping is there all the same.
	client.h.drv.maxRequest = func(int, int) error { return syscall.EACCES }
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Error(err)
	}
	unwritable()
	m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"}) // the data path goes on
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Error(err)
	}
	os.Remove(state)
}

// TestMapIsGivenUp: a caller that goes while its volume is being opened leaves nothing.
func TestMapIsGivenUp(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	ctx, cancel := context.WithCancel(t.Context())
	good := client.h.drv
	client.h.drv.connect = func(i int, a nbd.Attach) (int, error) {
		cancel()
		return good.connect(i, a)
	}
	m, err := client.h.Map(ctx, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	client.h.drv = good
	if err == nil { // it was there before the caller had gone
		err = client.h.Unmap(testCtx(t), m.ID, true)
		if err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, "a caller that went", server, client, k)
}

// TestWhatIsTakenUp: of what an earlier daemon has left, each mapping that makes no sense
// and each export that cannot be is told and left out; all others are back.
func TestWhatIsTakenUp(t *testing.T) {
	server, client, k := withKernel(t)
	disk1 := file(t, "disk", 8<<20)
	mustExport(t, server.h, disk1)
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", ID: "good", Persist: true})
	client.stop()
	name := filepath.Join(client.cfg.StateDir, stateFile)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var st state
	if err := json.Unmarshal(b, &st); err != nil || len(st.Mappings) != 1 {
		t.Fatalf("%s: %v", b, err)
	}
	good := st.Mappings[0]
	with := func(id string, change func(*mappingState)) mappingState {
		m := good
		m.ID, m.Name, m.Socket = id, id, filepath.Join(client.cfg.StateDir, id)
		change(&m)
		return m
	}
	st.Mappings = []mappingState{
		with("io", func(m *mappingState) { m.IOTimeout = "soon" }),
		with("loss", func(m *mappingState) { m.LossTimeout = "never" }),
		with("access", func(m *mappingState) { m.Access = "w" }),
		with("", func(m *mappingState) { m.Name, m.Socket = "none", "" }),
		with("ended", func(m *mappingState) { m.Persist = false }),
		good,
		with("twice", func(m *mappingState) { m.Name = good.Name }),
		with("device", func(m *mappingState) { m.As, m.Socket, m.Device, m.Persist = AsNBD, "", "/dev/nbd7", false }),
	}
	st.Exports = []exportState{{Name: "there", Kind: KindFile, Path: disk1.Path}, {Name: "a/../b", Kind: KindFile, Path: disk1.Path}}
	if b, err = json.Marshal(&st); err == nil {
		err = os.WriteFile(name, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	client.start()
	failed := map[string]bool{}
	c, stop := client.h.Watch(0)
	defer stop()
	back := false
	for end := time.After(10 * time.Second); !back; {
		select {
		case ev := <-c:
			if ev.State == "failed" {
				if ev.Err == nil || ev.Text == "" {
					t.Errorf("%+v does not say why", ev)
				}
				failed[ev.Kind+" "+ev.Mapping+ev.Export] = true
			}
			back = back || ev.Kind == EventMapping && ev.State == StateOpen && ev.Mapping == "good"
		case <-end:
			t.Fatal("the good one is not back")
		}
	}
	for _, want := range []string{"io", "loss", "access", "", "twice"} {
		if !failed[EventMapping+" "+want] {
			t.Errorf("mapping %q: nobody is told; told are %v", want, failed)
		}
	}
	if !failed[EventExport+" a/../b"] || len(failed) != 6 {
		t.Errorf("told are %v, want the export and five mappings", failed)
	}
	l := client.h.Mappings()
	if len(l) != 6 || l[0].ID != "good" || k.count() != 0 {
		t.Errorf("there are %+v and %d devices", l, k.count())
	}
	for _, m := range l[1:] { // they stay, and say why
		if m.State != StateInit || m.LastError == "" {
			t.Errorf("left: %+v", m)
		}
	}
	if l := client.h.Exports(); len(l) != 2 || l[0].Name != "a/../b" || l[0].State != "failed" || l[1].Name != "there" || l[1].State == "failed" {
		t.Errorf("there are the exports %+v", l)
	}
}

// TestKernelThatDoesNotTell: what devices the kernel has cannot be known at the start; a
// mapping that persists is attached anew, one that does not has ended.
func TestKernelThatDoesNotTell(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("kept", 8<<20))
	mustExport(t, server.h, memory("lost", 8<<20))
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "kept", As: AsNBD, ID: "kept", Persist: true})
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "lost", As: AsNBD, ID: "lost"})
	client.stop()
	k.disconnect(0)
	k.disconnect(1)
	client.drv.status = func(int) (map[int]bool, error) { return nil, syscall.EPERM }
	client.start()
	eventually(t, "attached anew", func() bool {
		i, err := client.h.Mapping("kept")
		return err == nil && i.State == StateOpen && i.Device == "/dev/nbd0"
	})
	if l := client.h.Mappings(); len(l) != 1 || k.count() != 1 {
		t.Errorf("there are %+v and %d devices", l, k.count())
	}
}

// TestDeviceIsFoundByItsName: a device that the kernel knows by its mapping is taken up whatever
// else the kernel tells.
func TestDeviceIsFoundByItsName(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD})
	client.stop()
	k.mu.Lock()
	k.devices[0].close()
	k.devices[0].conn = nil // it has noticed
	k.mu.Unlock()
	client.drv.status = func(int) (map[int]bool, error) { return nil, syscall.ENOBUFS }
	client.start()
	eventually(t, "the device has a connection again", func() bool { return k.device(0).conn != nil })
	if i := back(t, client, m.ID); i.Device != m.Device {
		t.Errorf("back as %+v", i)
	}
}

// TestResizeIsToldOnce: a resize that changes nothing is no event, whatever an export was
// when it was made.
func TestResizeIsToldOnce(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	s := file(t, "disk", 8<<20)
	mustExport(t, server.h, s)
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	c, stop := server.h.Watch(FromNow)
	defer stop()
	ctx := testCtx(t)
	for _, size := range []uint64{0, 8 << 20, 6 << 20, 6 << 20, 0} {
		if _, err := server.h.ResizeExport(ctx, "disk", size); err != nil {
			t.Fatal(err)
		}
	}
	// The store changes by itself: the device that has it open does not know, and is told.
	if err := os.Truncate(s.Path, 4<<20); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := server.h.ResizeExport(ctx, "disk", 0); err != nil || n != 4<<20 {
			t.Fatal(n, err)
		}
	}
	server.h.ev.add(Event{Kind: "end"})
	var sizes []uint64
	for ev := range c {
		if ev.Kind == EventResize {
			sizes = append(sizes, ev.Size)
		}
		if ev.Kind == "end" {
			break
		}
	}
	if len(sizes) != 2 || sizes[0] != 6<<20 || sizes[1] != 4<<20 {
		t.Errorf("told are %v", sizes)
	}
}

// TestResizeOfWhatWasNotThere: an export whose file was not there at the start has no size
// of its own; what it had before a resize is what the one who has it open knows.
func TestResizeOfWhatWasNotThere(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	s := file(t, "disk", 8<<20)
	s.Persist = true
	mustExport(t, server.h, s)
	server.stop()
	away := s.Path + ".away"
	if err := os.Rename(s.Path, away); err != nil {
		t.Fatal(err)
	}
	server.start()
	if err := os.Rename(away, s.Path); err != nil {
		t.Fatal(err)
	}
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	c, stop := server.h.Watch(FromNow)
	defer stop()
	if n, err := server.h.ResizeExport(testCtx(t), "disk", 0); err != nil || n != 8<<20 {
		t.Fatal(n, err)
	}
	server.h.ev.add(Event{Kind: "end"})
	for ev := range c {
		if ev.Kind == EventResize {
			t.Errorf("nothing has changed, and told is %+v", ev)
		}
		if ev.Kind == "end" {
			break
		}
	}
}

// TestUnmapOnItsWay: a mapping that is being unmapped is not unmapped again, nor used; a
// caller that does not wait is told so, and it ends all the same.
func TestUnmapOnItsWay(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD})
	entered, release := make(chan struct{}), make(chan struct{})
	good := k.disconnect
	client.h.mu.Lock()
	client.h.mappings[0].front.(*kernelFront).drv.disconnect = func(i int) error {
		close(entered)
		<-release
		return good(i)
	}
	client.h.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- client.h.Unmap(ctx, m.ID, false) }()
	<-entered
	is(t, "a second unmap", client.h.Unmap(testCtx(t), m.ID, false), syscall.EBUSY, "being unmapped")
	is(t, "a second unmap by force", client.h.Unmap(testCtx(t), m.ID, true), syscall.EBUSY, "being unmapped")
	_, err := client.h.ResizeMapping(testCtx(t), m.ID, 0)
	is(t, "resize", err, syscall.EBUSY, "not any more")
	_, err = client.h.Remap(testCtx(t), m.ID)
	is(t, "remap", err, syscall.EBUSY, "not any more")
	cancel()
	is(t, "a caller that does not wait", <-first, syscall.ETIMEDOUT, "on its way out")
	close(release)
	eventually(t, "it has ended", func() bool { return len(client.h.Mappings()) == 0 })
	nothingLeft(t, "unmapped", server, client, k)

	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", ID: "late"})
	h := client.h
	client.stop()
	if err := h.Unmap(testCtx(t), "late", true); err == nil {
		t.Error("unmapped after the end")
	}
}
