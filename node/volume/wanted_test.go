package volume

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
)

// resolver stands for name servers, which know one name.
type resolver struct {
	name  string
	is    netip.Addr
	fails atomic.Bool
	held  atomic.Pointer[chan struct{}]
	asked atomic.Int32 // questions that were held
}

// newResolver is one until the test has ended.
func newResolver(t *testing.T, name string, is netip.Addr) *resolver {
	r, was := &resolver{name: name, is: is}, lookUpIP
	lookUpIP = func(ctx context.Context, network, host string) ([]netip.Addr, error) {
		switch c := r.held.Load(); {
		case host != name:
			return was(ctx, network, host)
		case c != nil:
			r.asked.Add(1)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-*c:
			}
		case r.fails.Load():
			return nil, errors.New("no name server")
		}
		return []netip.Addr{r.is}, nil
	}
	t.Cleanup(func() { lookUpIP = was })
	return r
}

// hold has questions wait for release. Those that come after pass do not.
func (r *resolver) hold() (pass, release func()) {
	c := make(chan struct{})
	r.asked.Store(0)
	r.held.Store(&c)
	pass = func() { r.held.Store(nil) }
	return pass, sync.OnceFunc(func() { pass(); close(c) })
}

// TestSilentNameServers: mappings are back within seconds by the path that is an address, or that has a name of
// which somebody knows, while of another one's name nobody tells, and that one is there later.
func TestSilentNameServers(t *testing.T) {
	for what, first := range map[string]string{"an address": "127.0.0.2", "a name": "known.test"} {
		t.Run(what, func(t *testing.T) {
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			newResolver(t, "known.test", netip.MustParseAddr("127.0.0.2"))
			names := newResolver(t, "later.test", netip.MustParseAddr("127.0.0.3"))
			server.start()
			client.start()
			var list []MappingInfo
			for _, name := range []string{"disk", "second"} {
				mustExport(t, server.h, file(t, name, 8<<20))
				list = append(list, mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Persist: true,
					Paths: []PathSpec{{Src: "127.0.0.1", Dst: names.name}, {Src: "127.0.0.1", Dst: first}}}))
			}
			client.stop()

			_, release := names.hold()
			defer release()
			clock := await.NewClock(t)
			client.start()
			for _, m := range list {
				opensAgain(t, m)
			}
			if took := clock.Now(); took > lookUpSoon+3*time.Second {
				t.Errorf("it took %v", took)
			}
			if i := back(t, client, list[0].ID); i.PathCount != 1 {
				t.Errorf("%d paths while the address of one is not known", i.PathCount)
			}
			if len(client.h.Sessions()) != 1 {
				t.Errorf("sessions: %+v", client.h.Sessions())
			}
			release()
			eventually(t, "both paths", func() bool { i, err := client.h.Mapping(list[0].ID); return err == nil && i.PathsUp == 2 })
		})
	}
}

// wanting is a client that has a mapping again by one of its two paths, and is looking the other one up.
func wanting(t *testing.T) (client *testNode, m MappingInfo, p PathSpec, pass, release func()) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	names := newResolver(t, "later.test", serverAddrs[1])
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	p = PathSpec{Src: "127.0.0.1", Dst: names.name}
	m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Paths: []PathSpec{server.twoPaths()[0], p}})
	client.stop()
	names.fails.Store(true)
	client.start()
	opensAgain(t, m)
	pass, release = names.hold()
	eventually(t, "it is looked up", func() bool { return names.asked.Load() > 0 })
	names.fails.Store(false)
	return client, m, p, pass, release
}

// staysAway holds that a path which was removed is not brought back by who looks it up just now.
func staysAway(t *testing.T, client *testNode, m MappingInfo, p PathSpec, release func()) {
	t.Helper()
	c, err := client.h.clientSession(m.Session)
	if err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "nothing is looked up", func() bool {
		defer c.look()()
		return !c.seeking
	})
	if i, _ := client.h.Mapping(m.ID); i.PathCount != 1 || len(i.Paths) != 1 {
		t.Errorf("%d paths, %+v", i.PathCount, i.Paths)
	}
	if b, err := os.ReadFile(filepath.Join(client.cfg.StateDir, stateFile)); err != nil || strings.Contains(string(b), p.Dst) {
		t.Errorf("the state is %s, %v", b, err)
	}
}

func TestRemovedWhileItIsLookedUp(t *testing.T) {
	client, m, p, _, release := wanting(t)
	defer release()
	if err := client.h.RemovePath(testCtx(t), m.Session, p); err != nil {
		t.Fatal(err)
	}
	staysAway(t, client, m, p, release)
}

// TestAddedAndRemovedWhileItIsLookedUp: an administrator has been faster, and then has thought better of it.
func TestAddedAndRemovedWhileItIsLookedUp(t *testing.T) {
	client, m, p, pass, release := wanting(t)
	defer release()
	pass()
	for range 2 { // the second time it was removed before
		if _, err := client.h.AddPath(testCtx(t), m.Session, p); err != nil {
			t.Fatal(err)
		}
		if i, _ := client.h.Mapping(m.ID); i.PathCount != 2 || len(i.Paths) != 2 {
			t.Errorf("added: %d paths, %+v", i.PathCount, i.Paths)
		}
		if err := client.h.RemovePath(testCtx(t), m.Session, PathSpec{Dst: serverAddrs[1].String()}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { return len(client.h.Paths()) == 1 })
	}
	staysAway(t, client, m, p, release)
}

// TestRemovedBeforeAnotherJoins: a mapping that joins its session later does not bring back a path that
// was removed from that meanwhile.
func TestRemovedBeforeAnotherJoins(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	third := netip.MustParseAddr("127.0.0.4")
	server.cfg.Addresses = append([]netip.Addr{third}, serverAddrs...)
	names := newResolver(t, "later.test", third)
	server.start()
	client.start()
	paths := []PathSpec{{Src: "127.0.0.1", Dst: serverAddrs[0].String()}, {Src: "127.0.0.1", Dst: serverAddrs[1].String()}}
	mustExport(t, server.h, file(t, "disk", 8<<20))
	mustExport(t, server.h, file(t, "second", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: "store", Name: "disk", Persist: true, Paths: paths})
	later := []PathSpec{paths[1], {Src: "127.0.0.1", Dst: names.name}}
	m2 := mustMap(t, client.h, MapSpec{Node: "store", Name: "second", Persist: true, Paths: later})
	client.stop()
	// As an earlier version wrote them: each with what was asked for with it.
	st := written(t, client)
	st.Mappings[0].Paths, st.Mappings[1].Paths = paths, later
	b, err := json.Marshal(st)
	if err == nil {
		err = os.WriteFile(filepath.Join(client.cfg.StateDir, stateFile), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	_, release := names.hold()
	defer release()
	client.start()
	opensAgain(t, m)
	if err := client.h.RemovePath(testCtx(t), m.Session, paths[1]); err != nil {
		t.Fatal(err)
	}
	if i, err := client.h.Mapping(m2.ID); err != nil || i.State != StateInit || len(i.Paths) != 1 {
		t.Errorf("the other one is %v with %+v; this shows nothing", i.State, i.Paths)
	}
	opensAgain(t, m2)
	release()
	eventually(t, "the path that was not there", func() bool { i, _ := client.h.Mapping(m2.ID); return i.PathsUp == 2 })
	for _, p := range client.h.Paths() {
		if strings.HasPrefix(p.Dst, paths[1].Dst) {
			t.Error("the path that was removed is back")
		}
	}
	if b, err := os.ReadFile(filepath.Join(client.cfg.StateDir, stateFile)); err != nil || strings.Contains(string(b), paths[1].Dst) {
		t.Errorf("the state is %s, %v", b, err)
	}
}

// TestWantedOneIsRemoved: of several paths to one name that one is taken away which is meant, and nothing else from what is written down.
func TestWantedOneIsRemoved(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	names := newResolver(t, "later.test", serverAddrs[1])
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	one, two, bare := PathSpec{Src: "127.0.0.1", Dst: names.name}, PathSpec{Src: "127.0.0.5", Dst: names.name}, PathSpec{Dst: names.name}
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Paths: []PathSpec{server.twoPaths()[0], one, two}})
	client.stop()
	names.fails.Store(true)
	client.start()
	opensAgain(t, m)
	ctx := testCtx(t)
	has := func(what string, want ...PathSpec) {
		t.Helper()
		st, err := readState(client.h.store.disk)
		if i, _ := client.h.Mapping(m.ID); err != nil || !slices.Equal(i.Paths[1:], want) || !slices.Equal(st.Mappings[0].Paths[1:], want) {
			t.Errorf("%s: %+v, written down %+v, %v; want %+v", what, i.Paths, st.Mappings[0].Paths, err, want)
		}
	}
	is(t, "one of two", client.h.RemovePath(ctx, m.Session, bare), syscall.EINVAL, "has 2 paths")
	has("refused", one, two)
	if err := client.h.RemovePath(ctx, m.Session, two); err != nil {
		t.Error(err)
	}
	has("the second removed", one)
	names.fails.Store(false)
	eventually(t, "the first is there", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 2 })

	c, err := client.h.clientSession(m.Session)
	if err != nil {
		t.Fatal(err)
	}
	// No address of that family leads there.
	never, another := PathSpec{Src: "::1", Dst: names.name}, PathSpec{Src: "::2", Dst: names.name}
	for _, more := range [][]PathSpec{{never}, {another, bare}} {
		names.fails.Store(true)
		for _, p := range more {
			c.want(p, errSilent)
		}
		if err := client.h.RemovePath(ctx, m.Session, bare); err != nil {
			t.Error(err)
		}
		if len(more) == 1 {
			has("one that is wanted beside one that is there", one)
		} else {
			has("the one without a source", one, another)
		}
	}
}

// TestWantedOneIsListed: a path whose name has no address is among those that are down, for as long as it is wanted.
func TestWantedOneIsListed(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	names := newResolver(t, "later.test", serverAddrs[1])
	server.start()
	defer server.stop()
	client.start()
	defer func() { client.stop() }()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Paths: []PathSpec{server.twoPaths()[0], {Dst: names.name}}})
	client.stop()
	names.fails.Store(true)
	client.start()
	opensAgain(t, m)
	unmade := func() (list []PathInfo) {
		for _, p := range client.h.Paths() {
			if p.Unmade {
				list = append(list, p)
			}
		}
		return list
	}
	eventually(t, "it was tried again", func() bool { l := unmade(); return len(l) == 1 && l[0].Attempts > 1 })
	p := unmade()[0]
	if p.Dst != names.name || p.Session != m.Session || p.Role != RoleClient || p.State == PathConnected || p.Down.IsZero() || !strings.Contains(p.LastError, "no name server") {
		t.Errorf("%+v", p)
	}
	found := false
	list, err := client.h.Check(testCtx(t), m.Session)
	for _, f := range list {
		found = found || f.Severity == SeverityWarning && strings.Contains(f.Text, "the path to later.test is reconnecting") && strings.Contains(f.Fix, "rdsd volume paths remove "+m.Session+" later.test")
	}
	if err != nil || !found {
		t.Errorf("the check says %+v, %v", list, err)
	}
	names.fails.Store(false)
	eventually(t, "it is there", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 2 && len(unmade()) == 0 })

	client.stop()
	names.fails.Store(true)
	client.start()
	opensAgain(t, m)
	eventually(t, "it is wanted again", func() bool { return len(unmade()) == 1 })
	if err := client.h.RemovePath(testCtx(t), m.Session, PathSpec{Dst: names.name}); err != nil {
		t.Error(err)
	}
	if l := unmade(); len(l) != 0 {
		t.Errorf("removed, and listed: %+v", l)
	}
}
