package volume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestTakenPortAtTheStart: a persistent export whose port another program has is not lost by
// that, and the start says why it failed.
func TestTakenPortAtTheStart(t *testing.T) {
	server := newServerNode(t, freePort(t))
	server.start()
	s := file(t, "disk", 8<<20)
	s.Persist = true
	mustExport(t, server.h, s)
	provider := server.h.transports[0].Provider
	server.stop()
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", server.node(), server.cfg.Port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newHost(server.cfg, Deps{Provider: provider}, kernelDriver); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a start on a port that is taken: %v", err)
	}
	l.Close()
	server.start()
	if l := server.h.Exports(); len(l) != 1 || l[0].Name != "disk" || l[0].Error != "" {
		t.Errorf("afterwards: %+v", l)
	}
}

// TestLimitsThatWereLoweredOnce: what a start has no room for stays, until it is ended by name.
func TestLimitsThatWereLoweredOnce(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	maps := map[string]string{} // id by name
	for _, name := range []string{"a", "b", "c"} {
		s := file(t, name, 8<<20)
		s.Persist = true
		mustExport(t, server.h, s)
		maps[name] = mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Persist: true}).ID
	}
	// What is there, with a mark at what could not be taken up.
	exports := func() (list []string) {
		for _, x := range server.h.Exports() {
			if x.State == "failed" {
				x.Name += "!"
			}
			list = append(list, x.Name)
		}
		return list
	}
	mappings := func() (list []string) {
		for _, m := range client.h.Mappings() {
			if i, err := client.h.Mapping(m.ID); err != nil || i.Name != m.Name {
				t.Errorf("%s: %+v, %v", m.ID, i, err)
			}
			if m.State != StateOpen {
				m.Name += "!"
			}
			list = append(list, m.Name)
		}
		return list
	}
	both := func(what string, x, m []string) {
		t.Helper()
		if got := exports(); !slices.Equal(got, x) {
			t.Errorf("%s: exports %v; want %v", what, got, x)
		}
		eventually(t, fmt.Sprintf("%s: mappings %v", what, m), func() bool { return slices.Equal(mappings(), m) })
	}
	again := func(most int) {
		client.stop()
		server.stop()
		server.cfg.MaxExports, client.cfg.MaxMappings = most, most
		server.start()
		client.start()
	}
	again(1)
	list := exports()
	slices.Sort(list)
	var room string // the one that had it
	for _, n := range list {
		if len(n) == 1 {
			room = n
		}
	}
	if len(list) != 3 || room == "" {
		t.Fatalf("with room for one: %v", list)
	}
	if f, err := server.h.Check(testCtx(t), ""); err != nil || !slices.ContainsFunc(f, func(f Finding) bool { return f.Severity == SeverityError && f.What != "export "+room }) {
		t.Errorf("%+v, %v", f, err)
	}
	again(3)
	both("with room for all", []string{"a", "b", "c"}, []string{"a", "b", "c"})
	again(1)
	for _, n := range []string{"a", "b", "c"} { // one is there, the others were left
		if err := server.h.Unexport(testCtx(t), n, true); err != nil {
			t.Errorf("unexport %s: %v", n, err)
		}
		if err := client.h.Unmap(testCtx(t), maps[n], true); err != nil {
			t.Errorf("unmap %s: %v", n, err)
		}
	}
	again(3)
	both("ended by name", nil, nil)
}

// TestLeftAndMappedAgain: who maps again what was left, under its ID, has the same. With its end
// nothing of it is there any more, also if its end took longer than the caller waited.
func TestLeftAndMappedAgain(t *testing.T) {
	for _, waits := range []bool{true, false} {
		port := freePort(t)
		server, client := newServerNode(t, port), newClientNode(t, port)
		server.start()
		client.start()
		mustExport(t, server.h, file(t, "first", 8<<20))
		mustExport(t, server.h, file(t, "disk", 8<<20))
		first := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "first", Persist: true})
		data := MapSpec{ID: "data", Node: server.node(), Name: "disk", Persist: true}
		mustMap(t, client.h, data)
		client.stop()
		client.cfg.MaxMappings = 1
		client.start()
		if i, err := client.h.Mapping("data"); err != nil || i.State != StateInit || !i.Left || i.Errno != syscall.EMFILE || i.Since.IsZero() {
			t.Fatalf("there is no room: %+v, %v", i, err)
		}
		if err := client.h.Unmap(testCtx(t), first.ID, true); err != nil {
			t.Fatal(err)
		}
		mustMap(t, client.h, data)
		ctx, cancel := context.WithCancel(testCtx(t))
		if !waits {
			cancel()
		}
		if err := client.h.Unmap(ctx, "data", true); waits && err != nil {
			t.Fatal(err)
		}
		cancel()
		eventually(t, "it has ended", func() bool { return len(client.h.Mappings()) == 0 || waits })
		if l := client.h.Mappings(); len(l) > 0 {
			t.Errorf("unmapped: %+v", l)
		}
		eventually(t, "it is not in the state", func() bool {
			st, err := readState(client.h.store.disk)
			return err == nil && len(st.Mappings) == 0
		})
	}
}

// TestLeftKeepsItsID: a mapping that asks for no ID in particular does not get that of one that was left, which
// would be lost by it.
func TestLeftKeepsItsID(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"first", "disk", "new"} {
		mustExport(t, server.h, file(t, name, 8<<20))
	}
	mustMap(t, client.h, MapSpec{ID: "first", Node: server.node(), Name: "first", Persist: true})
	left := fmt.Sprint("v", client.h.nextID+1)
	mustMap(t, client.h, MapSpec{ID: left, Node: server.node(), Name: "disk", Persist: true})
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	if err := client.h.Unmap(testCtx(t), "first", true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "new"})
		if i, err := client.h.Mapping(left); m.ID == left || err != nil || i.Name != "disk" {
			t.Errorf("%s is mapped, and what was left is %+v, %v", m.ID, i, err)
		}
		if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMapThatFailed: what could not be shown is not in the state, where it was written before that.
func TestMapThatFailed(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	socket := filepath.Join(t.TempDir(), "missing", "s")
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "disk", Persist: true, Socket: socket}); !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("a socket where there is no directory: %v", err)
	}
	eventually(t, "it is not in the state", func() bool {
		st, err := readState(client.h.store.disk)
		return err == nil && len(st.Mappings) == 0
	})
}

// TestLeftByAStartOfTheMachine: what there was no room for after a start of the machine has no users,
// and none at the next start of the daemon either.
func TestLeftByAStartOfTheMachine(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	client.boot = "one"
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "first", 8<<20))
	mustExport(t, server.h, file(t, "disk", 8<<20))
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "first", Persist: true})
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	client.stop()
	otherWrites(t, server)
	client.boot = "two"
	for _, most := range []int{1, 2} {
		client.cfg.MaxMappings = most
		client.start()
		if most == 1 {
			client.stop()
		}
	}
	if i := back(t, client, m.ID); i.State != StateOpen {
		t.Errorf("back as %v, %q", i.State, i.LastError)
	}
}

// TestLeftMappingsOfOneName: what names several that were left ends none of them, as with those that are there.
func TestLeftMappingsOfOneName(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"first", "a"} {
		mustExport(t, server.h, file(t, name, 1<<20))
	}
	for _, s := range []MapSpec{{Name: "first"}, {Name: "a", Session: "one"}, {Name: "a", Session: "two"}} {
		s.Node, s.Access, s.Persist = server.node(), AccessRO, true
		mustMap(t, client.h, s)
	}
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	what := server.node() + ":a"
	is(t, "two of that name", client.h.Unmap(testCtx(t), what, false), syscall.EINVAL, "v2, v3")
	if l := client.h.Mappings(); len(l) != 3 {
		t.Errorf("there are %+v", l)
	}
	for i, what := range []string{"v2", what} {
		if err := client.h.Unmap(testCtx(t), what, false); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if l := client.h.Mappings(); len(l) != 2-i {
			t.Errorf("%s has ended, and there are %+v", what, l)
		}
	}
	is(t, "none of that name", client.h.Unmap(testCtx(t), what, false), syscall.ENOENT, "no mapping")
}

// TestLeftAndThereOfOneName: nor does it end one that is there where one that was left may be meant.
func TestLeftAndThereOfOneName(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "a", 1<<20))
	for _, session := range []string{"one", "two"} {
		mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a", Session: session, Access: AccessRO, Persist: true})
	}
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	back(t, client, "v1")
	what := server.node() + ":a"
	is(t, "one that is there and one that was left", client.h.Unmap(testCtx(t), what, false), syscall.EINVAL, "v1, v2")
	for _, what := range []string{"v2", what} {
		if err := client.h.Unmap(testCtx(t), what, false); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l := client.h.Mappings(); len(l) != 0 {
		t.Errorf("there are %+v", l)
	}
}

// TestLeftExportIsNotItsStore: an export for which there was no place at the start is not told to see to its file, which is in order, whoever asks.
func TestLeftExportIsNotItsStore(t *testing.T) {
	server := newServerNode(t, freePort(t))
	server.start()
	for _, name := range []string{"first", "second"} {
		s := file(t, name, 8<<20)
		s.Persist = true
		mustExport(t, server.h, s)
	}
	server.stop()
	server.cfg.MaxExports = 1
	server.start()
	defer server.stop()
	left, taken := "second", "first" // by name, at each start
	for _, what := range []string{"", left} {
		var said []Finding
		list, err := server.h.Check(testCtx(t), what)
		for _, f := range list {
			if f.What == "export "+left {
				said = append(said, f)
			}
		}
		if err != nil || len(said) != 1 || said[0].Severity != SeverityError || !strings.Contains(said[0].Text, "not taken up at the start: there are 1 exports") ||
			said[0].Fix != "raise volumes.max_exports and systemctl restart rdsd; or rdsd volume unexport "+left {
			t.Errorf("check %q: %+v, %v", what, said, err)
		}
	}
	if i, err := server.h.exportInfo(left); err != nil || !i.Left || i.State != "failed" {
		t.Errorf("%+v, %v", i, err)
	}
	if i, err := server.h.exportInfo(taken); err != nil || i.Left {
		t.Errorf("%+v, %v", i, err)
	}
	if err := server.h.Unexport(testCtx(t), left, false); err != nil {
		t.Error(err)
	}
}
