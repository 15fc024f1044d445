package volume

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/kernelpeer"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport/tcp"
)

// TestAddressesNamePaths: an address names all paths that end there, one with a port those
// with that port, or whose port nobody knows yet.
func TestAddressesNamePaths(t *testing.T) {
	a := netip.MustParseAddrPort
	for _, c := range []struct {
		s    string
		at   netip.AddrPort
		want bool
	}{
		{"", a("10.0.0.1:5"), true},
		{"10.0.0.1", a("10.0.0.1:5"), true},
		{"10.0.0.2", a("10.0.0.1:5"), false},
		{"10.0.0.1:5", a("10.0.0.1:5"), true},
		{"10.0.0.1:6", a("10.0.0.1:5"), false},
		{"10.0.0.1:6", a("10.0.0.1:0"), true},
		{"10.0.0.2:5", a("10.0.0.1:5"), false},
		{"10.0.0.2:5", a("10.0.0.1:0"), false},
		{"::ffff:10.0.0.1", a("10.0.0.1:5"), true},
		{"[::ffff:10.0.0.1]:5", a("10.0.0.1:5"), true},
		{"10.0.0", a("10.0.0.1:5"), false},
	} {
		if got := matches(c.s, c.at); got != c.want {
			t.Errorf("%q for %v: %v", c.s, c.at, got)
		}
	}
}

// TestResetOfSome: statistics are reset of the session that is named, by name or ID, and of
// the path, at either end; of nobody that is an error.
func TestResetOfSome(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	mustExport(t, server.h, memory("b", 1<<20))
	one := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Session: "one", Paths: server.twoPaths(), Policy: "rr"})
	two := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "b", Session: "two", Paths: server.twoPaths(), Policy: "rr"})
	eventually(t, "all paths", func() bool {
		n := 0
		for _, s := range client.h.Sessions() {
			n += s.PathsUp
		}
		return n == 4
	})
	nodes := map[string]*Host{"client": client.h, "server": server.h}
	// counted says of which paths there are statistics: "one 2" is the path of session one to 127.0.0.2.
	counted := func(h *Host) string {
		var l []string
		for _, p := range h.Paths() {
			if p.Writes > 0 {
				l = append(l, p.Session+" "+strings.TrimPrefix(netip.MustParseAddrPort(p.Dst).Addr().String(), "127.0.0."))
			}
		}
		return strings.Join(l, ", ")
	}
	id := func(h *Host, name string) string {
		for _, s := range h.Sessions() {
			if s.Name == name {
				return s.ID
			}
		}
		t.Fatalf("no session %s", name)
		return ""
	}
	const all = "one 2, one 3, two 2, two 3"
	for role, h := range nodes {
		for _, c := range []struct {
			session string
			path    PathSpec
			left    string
		}{
			{"one", PathSpec{}, "two 2, two 3"},
			{"two", PathSpec{}, "one 2, one 3"},
			{id(h, "two"), PathSpec{}, "one 2, one 3"},
			{"one", PathSpec{Dst: "127.0.0.3"}, "one 2, two 2, two 3"},
			{"", PathSpec{Dst: "127.0.0.2"}, "one 3, two 3"},
			{"", PathSpec{}, ""},
		} {
			for _, m := range []MappingInfo{one, two} {
				for h, end := counted(h), time.Now().Add(10*time.Second); h != all && time.Now().Before(end); h = counted(nodes[role]) {
					if err := writePattern(open(t, m), 0, 64<<10, 1, 4096); err != nil {
						t.Fatal(err)
					}
					if strings.Count(h, m.Session) == 2 {
						break
					}
				}
			}
			if got := counted(h); got != all {
				t.Fatalf("%s: written on %s", role, got)
			}
			if err := h.ResetStats(testCtx(t), c.session, c.path); err != nil {
				t.Errorf("%s: %q %v: %v", role, c.session, c.path, err)
			}
			if got := counted(h); got != c.left {
				t.Errorf("%s: %q %v: statistics are left of %q, want %q", role, c.session, c.path, got, c.left)
			}
		}
		for session, p := range map[string]PathSpec{"three": {}, "one": {Dst: "127.0.0.9"}, "": {Dst: "127.0.0.9"}} {
			if err := h.ResetStats(testCtx(t), session, p); !errors.Is(err, syscall.ENOENT) {
				t.Errorf("%s: %q %v: %v", role, session, p, err)
			}
		}
	}
	// A node without a path has nothing to reset, which is no error unless one was named.
	client.stop()
	client.start()
	if err := client.h.ResetStats(testCtx(t), "", PathSpec{}); err != nil {
		t.Error(err)
	}
}

// TestCheckOfOne: a check of something that is named looks at that alone, whichever of its
// names is used; a single path is warned of.
func TestCheckOfOne(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"a", "b"} {
		mustExport(t, server.h, file(t, name, 1<<20))
	}
	a := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Session: "one"})
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "b", Session: "two", Paths: server.twoPaths()})
	whats := func(h *Host, what string) string {
		list, err := h.Check(testCtx(t), what)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var l []string
		for _, f := range list {
			l = append(l, f.What)
		}
		return strings.Join(l, ", ")
	}
	for _, name := range []string{a.ID, a.Device, a.Node + ":a"} {
		if got := whats(client.h, name); got != "mapping "+a.ID {
			t.Errorf("%s: %s", name, got)
		}
	}
	for _, s := range client.h.Sessions() {
		for _, name := range []string{s.Name, s.ID} {
			if got := whats(client.h, name); got != "session "+s.Name {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	if got := whats(server.h, "b"); got != "export b" {
		t.Errorf("export b: %s", got)
	}
	if _, err := client.h.Check(testCtx(t), "c"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("of what there is not: %v", err)
	}
	list, _ := client.h.Check(testCtx(t), a.ID)
	if len(list) != 1 || list[0].Severity != SeverityWarning || !strings.Contains(list[0].Text, "one path only") || list[0].Fix == "" {
		t.Errorf("a single path: %+v", list)
	}
}

// TestQuestionsWithoutAnAnswer: a question about a volume that cannot be asked is an error, never
// the description of nothing.
func TestQuestionsWithoutAnAnswer(t *testing.T) {
	client := newClientNode(t, freePort(t)) // nobody listens there
	client.start()
	ask := MapSpec{Node: "127.0.0.2", Name: "a"}
	if i, err := client.h.RemoteInfo(testCtx(t), ask); err == nil {
		t.Errorf("of nobody: %+v", i)
	}
	ctx, cancel := context.WithCancel(testCtx(t))
	cancel()
	if i, err := client.h.RemoteInfo(ctx, ask); err == nil {
		t.Errorf("given up: %+v", i)
	}
	if l := client.h.Sessions(); len(l) != 0 {
		t.Errorf("left: %+v", l)
	}
}

// TestNamesOfMappingsAreTheirs: a mapping's ID, volume and socket are its own, and a socket's
// path has to be one that the kernel takes.
func TestNamesOfMappingsAreTheirs(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	client.cfg.SocketDir = stateDir(t) + "/" + strings.Repeat("d", 100)
	if err := os.Mkdir(client.cfg.SocketDir, 0o700); err != nil {
		t.Fatal(err)
	}
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	m, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "a"})
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "want at most 107 bytes") {
		t.Errorf("a socket in a directory with a long name: %+v, %v", m, err)
	}
	if l := client.h.Mappings(); len(l) != 0 {
		t.Errorf("left: %+v", l)
	}
	// With no word of its kind an export without a path is memory, and its name is taken then.
	if i := mustExport(t, server.h, ExportSpec{Name: "b", Size: 1 << 20}); i.Kind != KindMemory || i.Info.Size != 1<<20 {
		t.Errorf("exported as %+v", i)
	}
	if _, err := server.h.Export(testCtx(t), ExportSpec{Name: "b", Size: 2 << 20}); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a name that is taken: %v", err)
	}
	if l := server.h.Exports(); len(l) != 2 || l[1].Info.Size != 1<<20 {
		t.Errorf("exported are %+v", l)
	}
}

// TestWrongCoresAreTold: what a core refuses of its configuration is an error of whoever makes
// the Host or the session.
func TestWrongCoresAreTold(t *testing.T) {
	n := newServerNode(t, freePort(t))
	m := thisMachine(nil)
	m.Tune = func(c *rtrs.ClientConfig, s *rtrs.ServerConfig) {
		if s != nil {
			s.QueueDepth = -1
		}
	}
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	h, err := newHostOn(n.cfg, Deps{Provider: tcp.New(r), Reactors: []*reactor.Reactor{r}}, kernelDriver, m)
	if err == nil || !strings.Contains(err.Error(), "queue depth -1") {
		t.Errorf("a server with a queue of -1: %v", err)
	}
	if err == nil {
		h.Close(testCtx(t))
	}
}

// TestKernelThatOpensNothing: a kernel's session that was lost with volumes open is remembered
// until it has closed them; that it was here again and opened none changes nothing.
func TestKernelThatOpensNothing(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	client.links = kernelpeer.Volumes
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	spec := MapSpec{Node: server.node(), Name: "a", Session: "k"}
	if err := client.h.cfg.complete(&spec); err != nil {
		t.Fatal(err)
	}
	lost := func() bool {
		done := server.h.srv.look()
		defer done()
		_, ok := server.h.srv.lostKernels["k"]
		return ok
	}
	now := server.h.srv.lock(server.h.now())
	server.h.srv.lostKernels["k"] = time.Now()
	server.h.srv.finish(now)
	c, err := client.h.session(testCtx(t), &spec, &MapSpec{}, true)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a kernel's session", func() bool {
		s := server.h.Sessions()
		return len(s) == 1 && s[0].Kernel && s[0].Up
	})
	client.h.release(c)
	eventually(t, "the session's end", func() bool { return len(server.h.Sessions()) == 0 })
	if !lost() {
		t.Error("forgotten, though it has closed nothing")
	}
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Session: "k"})
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session's end", func() bool { return len(server.h.Sessions()) == 0 })
	if lost() {
		t.Error("remembered, though it has closed all")
	}
}

// TestRemapWhileTheServerIsAsked: while the server is being asked for a volume another Remap
// waits for its turn, as long as its caller does. All that wait are told of the end.
func TestRemapWhileTheServerIsAsked(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("a", 1<<20))
	held := newProxy(t, "127.0.0.3:0", netip.AddrPortFrom(server.cfg.Addresses[0], port).String())
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Paths: []PathSpec{{Dst: held.addr()}}})
	_, d, err := client.h.volume(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.h.Unexport(testCtx(t), "a", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume's end", func() bool { i, err := client.h.Mapping(m.ID); return err == nil && i.State == StateClosed })
	remap := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, err := client.h.Remap(ctx, m.ID)
			done <- err
		}()
		return done
	}
	held.set(false, true) // the answer does not come
	patient, stop := context.WithCancel(testCtx(t))
	first := remap(patient)
	eventually(t, "the question", func() bool { defer d.c.look()(); return d.v.Asking() })
	ctx, cancel := context.WithCancel(testCtx(t))
	second := remap(ctx)
	cancel()
	if err := <-second; !errors.Is(err, syscall.ETIMEDOUT) || !strings.Contains(err.Error(), "has not answered") {
		t.Errorf("the second, given up: %v", err)
	}
	held.set(false, false)
	eventually(t, "the answer", func() bool { defer d.c.look()(); return !d.v.Asking() && errors.Is(d.v.Err(), syscall.ENOENT) })
	stop()
	if err := <-first; !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the first, of a volume that is gone: %v", err)
	}

	all := []chan error{remap(testCtx(t)), remap(testCtx(t)), remap(testCtx(t))}
	mustExport(t, server.h, memory("a", 1<<20))
	for i, done := range all {
		if err := <-done; err != nil && !errors.Is(err, syscall.EALREADY) {
			t.Errorf("number %d of three: %v", i, err)
		}
	}
}
