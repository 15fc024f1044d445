package volume

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
)

func TestPathsAreManagedUnderTraffic(t *testing.T) {
	server, client, _, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{Paths: []PathSpec{{Src: "127.0.0.1", Dst: "127.0.0.2"}}, Persist: true})
	ctx := testCtx(t)
	h := client.h
	x := startTraffic(t, open(t, m))
	x.progress(t, 20)
	second := PathSpec{Src: "127.0.0.1", Dst: "127.0.0.3"}
	if p, err := h.AddPath(ctx, m.Session, second); err != nil || p.Role != RoleClient || p.Session != m.Session {
		t.Fatalf("%+v, %v", p, err)
	}
	up := func(n int) func() bool {
		return func() bool { i, _ := h.Mapping(m.ID); return i.PathsUp == n }
	}
	eventually(t, "two paths", up(2))
	for _, policy := range []string{"rr", "ml", "mi"} {
		if err := h.SetPolicy(ctx, m.Session, policy); err != nil {
			t.Fatal(err)
		}
		x.progress(t, 20)
	}
	if err := h.DisconnectPath(ctx, m.Session, PathSpec{Dst: "127.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one path", up(1))
	x.progress(t, 20)
	if i, _ := h.Mapping(m.ID); !strings.HasPrefix(i.Address.Dst, "127.0.0.3:") {
		t.Errorf("requests go to %+v", i.Address)
	}
	if err := h.ReconnectPath(ctx, m.Session, PathSpec{Dst: "127.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two paths", up(2))
	for range 2 { // the server's side of it: the client comes back
		if err := server.h.DisconnectPath(ctx, m.Session, PathSpec{Dst: "127.0.0.3"}); err != nil {
			t.Fatal(err)
		}
		x.progress(t, 20)
		eventually(t, "two paths", func() bool { return up(2)() && len(server.h.Paths()) == 2 })
	}
	var reads, fresh uint64
	for _, p := range h.Paths() {
		reads += p.Reads
		if p.State != "connected" || p.Conns != 2 {
			t.Errorf("%+v", p)
		}
	}
	if err := h.ResetStats(ctx, "", PathSpec{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range h.Paths() {
		fresh += p.Reads
	}
	if reads == 0 || fresh >= reads {
		t.Errorf("%d reads before the reset, %d after", reads, fresh)
	}
	if err := h.RemovePath(ctx, m.Session, PathSpec{Dst: "127.0.0.2"}); err != nil {
		t.Fatal(err)
	}
	x.progress(t, 20)
	x.end(t)

	s := h.Sessions()
	if len(s) != 1 || !s[0].Up || s[0].Paths != 1 || s[0].Role != RoleClient || s[0].Depth != 512 || len(s[0].Volumes) != 1 || s[0].Policy != rtrs.MinInflight.String() {
		t.Errorf("the client's session: %+v", s)
	}
	l := server.h.Sessions()
	if len(l) != 1 || l[0].Name != m.Session || l[0].UUID != s[0].UUID || l[0].Role != RoleServer || l[0].Memory == 0 || l[0].Volumes[0] != "disk" {
		t.Errorf("the server's session: %+v", l)
	}
	client.stop() // the paths are those of the end
	client.start()
	opensAgain(t, m)
	if i, _ := client.h.Mapping(m.ID); len(i.Paths) != 1 || i.Paths[0] != second {
		t.Errorf("after a restart: %+v", i.Paths)
	}
}

func TestResizeIsSeen(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	for _, s := range []ExportSpec{memory("mem", 4<<20), file(t, "file", 4<<20)} {
		mustExport(t, server.h, s)
		if n, err := server.h.ResizeExport(ctx, s.Name, 6<<20); err != nil || n != 6<<20 {
			t.Fatalf("%s: before it is mapped: %d, %v", s.Name, n, err)
		}
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: s.Name})
		ro := mustMap(t, client.h, MapSpec{Node: server.node(), Name: s.Name, Session: "reader", Access: AccessRO})
		if m.Info.Size != 6<<20 || !ro.Info.ReadOnly {
			t.Fatalf("%s: %+v, %+v", s.Name, m.Info, ro.Info)
		}
		if n, err := server.h.ResizeExport(ctx, s.Name, 8<<20); err != nil || n != 8<<20 {
			t.Fatalf("%s: %d, %v", s.Name, n, err)
		}
		events, stop := client.h.Watch(FromNow)
		for _, id := range []string{m.ID, ro.ID} {
			if n, err := client.h.ResizeMapping(ctx, id, 0); err != nil || n != 8<<20 {
				t.Fatalf("%s: mapping %s: %d, %v", s.Name, id, n, err)
			}
			for e := range events {
				if e.Kind == EventResize {
					if e.Mapping != id || e.Size != 8<<20 {
						t.Errorf("%s: mapping %s: told %+v", s.Name, id, e)
					}
					break
				}
				if e.Kind == EventMapping {
					t.Errorf("%s: mapping %s: told %+v", s.Name, id, e)
				}
			}
		}
		stop()
		c := open(t, m) // a new client sees the new size
		if err := writePattern(c, 7<<20, 1<<20, 1, 64<<10); err != nil {
			t.Fatal(err)
		}
		if err := checkPattern(open(t, ro), 7<<20, 1<<20, 1, 64<<10); err != nil {
			t.Fatal(err)
		}
		if _, err := server.h.ResizeExport(ctx, s.Name, 1<<20); err != nil {
			t.Fatal(err)
		}
		if n, err := client.h.ResizeMapping(ctx, m.ID, 1<<20); err != nil || n != 1<<20 {
			t.Fatalf("%s: smaller: %d, %v", s.Name, n, err)
		}
		if err := writePattern(c, 7<<20, 4096, 1, 4096); err == nil {
			t.Errorf("%s: a write beyond the end has succeeded", s.Name)
		}
	}
}

// TestResizeOfOtherNames: who has a file open under another name of it sees that it has another size, too,
// and does not make it long again.
func TestResizeOfOtherNames(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	disk := file(t, "disk", 4<<20)
	mustExport(t, server.h, disk)
	other, golden := disk, disk
	other.Name, golden.Name, golden.ReadOnly = "other", "golden", true
	mustExport(t, server.h, other)
	mustExport(t, server.h, golden)
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "other"})
	ro := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "golden", Access: AccessRO})
	c := open(t, m)
	for _, size := range []uint64{1 << 20, 8 << 20} {
		if n, err := server.h.ResizeExport(ctx, "disk", size); err != nil || n != size {
			t.Fatal(n, err)
		}
		if size < 4<<20 {
			if err := writePattern(c, 3<<20, 4096, 1, 4096); err == nil {
				t.Error("a write beyond the end has succeeded")
			}
			if st, err := os.Stat(disk.Path); err != nil || st.Size() != int64(size) {
				t.Errorf("%v, %v", st, err)
			}
		}
		for _, i := range []MappingInfo{m, ro} {
			if n, err := client.h.ResizeMapping(ctx, i.ID, 0); err != nil || n != size {
				t.Errorf("%s has %d bytes (%v), want %d", i.Name, n, err, size)
			}
		}
	}
}

func TestUnexportByForce(t *testing.T) {
	server, client, _, m := withFaults(t, memory("mem", 1<<20), MapSpec{})
	ctx := testCtx(t)
	c := open(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	if err := server.h.Unexport(ctx, "mem", true); err != nil {
		t.Fatal(err)
	}
	if err := writePattern(c, 0, 4096, 1, 4096); err == nil {
		t.Error("a write to what was taken away has succeeded")
	}
	if len(server.h.Exports()) != 0 {
		t.Errorf("left: %+v", server.h.Exports())
	}
	if err := client.h.Unmap(ctx, m.ID, true); err != nil {
		t.Error(err)
	}
}

func TestRootsFindBySession(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	dir := t.TempDir()
	for _, f := range []string{"web/disk", "mail/disk", "web/sub/other"} {
		os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o700)
		os.WriteFile(filepath.Join(dir, f), make([]byte, 1<<20), 0o600)
	}
	os.Symlink("../mail/disk", filepath.Join(dir, "web/link"))
	server.cfg.Roots = []RootSpec{{Path: dir + "/{session}"}}
	server.start()
	client.start()
	mapIt := func(session, name string) (MappingInfo, error) {
		return client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: name, Session: session})
	}
	m, err := mapIt("web", "disk")
	if err != nil {
		t.Fatal(err)
	}
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(dir, "web/disk"))
	want := make([]byte, 4096)
	pattern(want, 0, 1)
	if string(b[:4096]) != string(want) {
		t.Error("the write went elsewhere")
	}
	if _, err := mapIt("web", "sub/other"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"../mail/disk", "link", "/etc/passwd", "none"} {
		if m, err := mapIt("web", name); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	l := server.h.Exports()
	if len(l) != 2 || l[0].Origin != OriginRoot || l[0].Name != "disk" || l[0].Info.Size != 1<<20 || len(l[0].Users) != 1 || l[0].Users[0].Session != "web" || l[0].Ops[blk.OpWrite].Completed != 1 || server.h.CountedExports()[0].Counts[blk.OpWrite].Completed != 1 {
		t.Errorf("listed as %+v", l)
	}
}

func TestRemoteInfo(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 3<<20))
	ctx := testCtx(t)
	ask := func() {
		t.Helper()
		i, err := client.h.RemoteInfo(ctx, MapSpec{Node: server.node(), Name: "disk"})
		if err != nil || i.Info.Size != 3<<20 || i.Info.MaxBytes != 256<<10 || i.QueueDepth != 512 {
			t.Errorf("%+v, %v", i, err)
		}
	}
	ask()
	if l := client.h.Sessions(); len(l) != 0 {
		t.Errorf("left: %+v", l)
	}
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	ask() // over the mapping there is
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Error(err)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	server, client, s, m := withFaults(t, file(t, "disk", 1<<20), MapSpec{})
	ctx := testCtx(t)
	eventually(t, "two paths", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 2 })
	has := func(h *Host, severity, what string) bool {
		t.Helper()
		list, err := h.Check(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			if f.Severity == severity && f.What == what {
				return f.Text != "" && (severity == SeverityOK || f.Fix != "")
			}
		}
		return false
	}
	if !has(client.h, SeverityOK, "mapping "+m.ID) || !has(client.h, SeverityOK, "session "+m.Session) || !has(server.h, SeverityOK, "export disk") {
		t.Error("all is well, but that is not said")
	}
	s.add(blk.Rule{Ops: blk.Ops(blk.OpRead), Err: blk.ErrMedium})
	p := make([]byte, 512)
	open(t, m).ReadAt(p, 0)
	os.Remove(m.Socket)
	if err := client.h.DisconnectPath(ctx, m.Session, PathSpec{Dst: "127.0.0.3"}); err != nil {
		t.Fatal(err)
	}
	x, _ := server.h.exportInfo("disk")
	os.Remove(x.Path)
	if !has(client.h, SeverityError, "mapping "+m.ID) || !has(client.h, SeverityWarning, "session "+m.Session) || !has(server.h, SeverityError, "export disk") {
		list, _ := client.h.Check(ctx, "")
		more, _ := server.h.Check(ctx, "")
		t.Errorf("not found: %+v %+v", list, more)
	}
	// Nobody is sent to look for a network that is down. It is closing for a moment before.
	eventually(t, "the path that was disconnected is told as that", func() bool {
		list, err := client.h.Check(ctx, m.Session)
		return err == nil && slices.ContainsFunc(list, func(f Finding) bool {
			return strings.Contains(f.Fix, "rdsd volume paths reconnect "+m.Session) && !strings.HasSuffix(f.Text, ": ")
		})
	})
	if list, err := server.h.Check(ctx, "disk"); err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestEventsTellTheStory(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	at, stopAt := server.h.Watch(0)
	defer stopAt()
	ev, stop := client.h.Watch(FromNow)
	defer stop()
	mustExport(t, server.h, memory("mem", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem"})
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	until := func(c <-chan Event, what string, match func(Event) bool) {
		t.Helper()
		for {
			select {
			case e, ok := <-c:
				if !ok {
					t.Fatalf("%s: no more events", what)
				}
				if e.Text == "" || e.Seq == 0 {
					t.Errorf("%+v", e)
				}
				if match(e) {
					return
				}
			case <-testCtx(t).Done():
				t.Fatalf("%s: not told", what)
			}
		}
	}
	until(ev, "path", func(e Event) bool { return e.Kind == EventPath && e.State == "connected" && e.Session == m.Session })
	until(ev, "mapping", func(e Event) bool { return e.Kind == EventMapping && e.State == StateOpen && e.Mapping == m.ID })
	until(ev, "unmapped", func(e Event) bool { return e.Kind == EventMapping && e.State == StateUnmapped })
	until(at, "exported", func(e Event) bool { return e.Kind == EventExport && e.Export == "mem" && e.State == "exported" })
	until(at, "session", func(e Event) bool { return e.Kind == EventSession && e.State == "connected" && e.Role == RoleServer })
	until(at, "opened", func(e Event) bool { return e.Kind == EventExport && e.State == "opened" && e.Session == m.Session })
	until(at, "closed", func(e Event) bool { return e.Kind == EventExport && e.State == "closed" })
}
