package volume

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rtrs"
)

// crash ends a node as a kill would leave it on disk: the state file says that
// it runs.
func (n *testNode) crash() {
	n.t.Helper()
	name := filepath.Join(n.cfg.StateDir, stateFile)
	b, err := os.ReadFile(name)
	if err != nil {
		n.t.Fatal(err)
	}
	n.stop()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// opensAgain waits for a mapping's socket and returns how long that took of the time that
// the process had.
func opensAgain(t *testing.T, m MappingInfo) (*nbd.Client, time.Duration) {
	t.Helper()
	clock := await.NewClock(t)
	var c *nbd.Client
	eventually(t, m.Device+" is back", func() bool {
		var err error
		c, err = nbd.DialURI(context.Background(), m.URI)
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c, clock.Now()
}

func TestPersistentMappingIsBack(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "kept", 8<<20))
	mustExport(t, server.h, file(t, "other", 8<<20))
	kept := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "kept", Persist: true, Paths: server.twoPaths(), Policy: "rr", IOTimeout: 7 * time.Second})
	other := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "other"})
	if err := writePattern(open(t, kept), 0, 64<<10, 1, 4096); err != nil {
		t.Fatal(err)
	}
	client.stop()
	if _, err := os.Stat(kept.Socket); !os.IsNotExist(err) {
		t.Fatalf("the socket of a stopped daemon is there: %v", err)
	}

	client.start()
	c, took := opensAgain(t, kept)
	if took > time.Second {
		t.Errorf("back after %v", took)
	}
	if err := checkPattern(c, 0, 64<<10, 1, 4096); err != nil {
		t.Fatal(err)
	}
	i, err := client.h.Mapping(kept.ID)
	if err != nil || i.Policy != rtrs.RoundRobin.String() || i.IOTimeout != 7*time.Second || !i.Persist || len(i.Paths) != 2 {
		t.Fatalf("back as %+v, %v", i, err)
	}
	if _, err := client.h.Mapping(other.ID); !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("a mapping that was not to persist: %v", err)
	}
	if m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "other"}); m.ID == kept.ID || m.ID == other.ID {
		t.Errorf("ID %s was used again", m.ID)
	}
	c.Close()
	if err := client.h.Unmap(testCtx(t), kept.ID, true); err != nil {
		t.Fatal(err)
	}
	client.stop()
	client.start()
	if l := client.h.Mappings(); len(l) != 0 {
		t.Fatalf("unmapped, and back after a restart: %+v", l)
	}
}

func TestSocketsAreBackAfterACrash(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	for i := range 3 {
		if err := writePattern(open(t, m), 0, 64<<10, byte(i+1), 4096); err != nil {
			t.Fatal(err)
		}
		client.crash()
		client.start()
		c, took := opensAgain(t, m)
		if took > time.Second {
			t.Errorf("back after %v", took)
		}
		if err := checkPattern(c, 0, 64<<10, byte(i+1), 4096); err != nil {
			t.Fatal(err)
		}
	}
	if i, err := client.h.Mapping(m.ID); err != nil || i.Persist {
		t.Fatalf("%+v, %v", i, err)
	}
}

// TestPastSurvivesACrash: that a sync failed, and who wrote last, is known to the
// daemon that is started after a crash of the serving one.
func TestPastSurvivesACrash(t *testing.T) {
	server, client, stores, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{})
	c := open(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	known := func(failed uint32) func() bool {
		return func() bool {
			st, err := readState(server.h.store.disk)
			return err == nil && len(st.Past) == 1 && st.Past[0].Syncs == failed && st.Past[0].Writer == client.h.Mappings()[0].Session
		}
	}
	eventually(t, "the writer is written down", known(0))
	stores.add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
	if err := c.Flush(); err == nil {
		t.Fatal("the flush did not fail")
	}
	eventually(t, "the failed sync is written down", known(1))
	before, _ := server.h.srv.past()
	held := server.h.srv.held()
	if s := client.h.Mappings()[0].Session; len(held) != 1 || held[0].Session != s || held[0].Name != "disk" || held[0].Ino == 0 {
		t.Errorf("what %q holds: %+v", s, held)
	}
	server.crash()
	server.start()
	if got, _ := server.h.srv.past(); !reflect.DeepEqual(got, before) {
		t.Errorf("after a crash %+v is known, before %+v", got, before)
	}
	if got := server.h.srv.held(); !reflect.DeepEqual(got, held) {
		t.Errorf("after a crash %+v is held, before %+v", got, held)
	}
}

func TestMappingWaitsForItsServerAtTheStart(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.Exports = []ExportSpec{file(t, "disk", 8<<20)}
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	client.stop()
	server.stop()
	client.start()
	eventually(t, "an attempt", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.State == StateInit
	})
	server.start()
	c, _ := opensAgain(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	// And one that never comes can be unmapped.
	client.stop()
	server.stop()
	client.start()
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
}

// TestMappingIsBackWithoutOneOfItsPaths holds that a mapping which is brought back at the start does without a path whose address is not to
// be had any more, also where another has made the session already. Whoever asks for such a path is told so; nobody is there to be told at a
// start, and the volume is needed.
func TestMappingIsBackWithoutOneOfItsPaths(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	mustExport(t, server.h, file(t, "second", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Paths: server.twoPaths()})
	m2 := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "second", Persist: true, Paths: server.twoPaths()})
	client.stop()

	name := filepath.Join(client.cfg.StateDir, stateFile)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	// No address of the source's family leads there.
	_, rest, _ := summed(b)
	changed := stateOpens + strings.ReplaceAll(string(rest), server.cfg.Addresses[1].String(), "::1")
	if err := os.WriteFile(name, []byte(changed), 0o600); err != nil || !strings.Contains(changed, "::1") {
		t.Fatalf("%v; the state is %s", err, b)
	}

	client.start()
	c, _ := opensAgain(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	opensAgain(t, m2)
	if l := client.h.Sessions(); len(l) != 1 || l[0].Paths != 1 || l[0].PathsUp != 1 {
		t.Fatalf("back by %+v; one path is left", l)
	}
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "other", Session: "told", Paths: []PathSpec{{Src: "127.0.0.1", Dst: "::1"}}}); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("who asks for that path is told %v", err)
	}
	gone := PathSpec{Dst: "::1"}
	if err := client.h.RemovePath(testCtx(t), m.Session, gone); err != nil {
		t.Errorf("removed: %v", err)
	}
	if err := client.h.RemovePath(testCtx(t), m.Session, gone); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("removed twice: %v", err)
	}
	if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), "::1") {
		t.Errorf("removed, and the state is %s, %v", b, err)
	}
}

// TestPathIsBackLater: a path whose address cannot be had at the start is there when it can.
func TestPathIsBackLater(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	const later = "later.test"
	var away atomic.Bool
	was := lookUpIP
	lookUpIP = func(ctx context.Context, network, host string) ([]netip.Addr, error) {
		switch {
		case host != later:
			return was(ctx, network, host)
		case away.Load():
			return nil, errors.New("no name server")
		}
		return server.cfg.Addresses[1:2], nil
	}
	t.Cleanup(func() { lookUpIP = was })
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	paths := server.twoPaths()
	paths[1].Dst = later
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true, Paths: paths})
	client.stop()

	away.Store(true)
	client.start()
	opensAgain(t, m)
	if i := back(t, client, m.ID); i.PathCount != 1 {
		t.Fatalf("%d paths while the address of one cannot be had", i.PathCount)
	}
	told := 0
	events, stop := client.h.Watch(0)
	for enough := time.After(10 * restoreMin); enough != nil; {
		select {
		case e := <-events:
			if strings.Contains(e.Text, later) {
				told++
			}
		case <-enough:
			enough = nil
		}
	}
	stop()
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	away.Store(false)
	eventually(t, "both paths", func() bool { i, err := client.h.Mapping(m.ID); return err == nil && i.PathsUp == 2 })
}

func TestExportsArePersistent(t *testing.T) {
	server := newServerNode(t, freePort(t))
	server.start()
	s := file(t, "disk", 8<<20)
	s.Persist, s.Shared = true, true
	mustExport(t, server.h, s)
	mustExport(t, server.h, file(t, "other", 8<<20))
	server.stop()
	server.start()
	if l := server.h.Exports(); len(l) != 1 || l[0].Name != "disk" || !l[0].Shared || l[0].Info.Size != 8<<20 {
		t.Fatalf("after a restart: %+v", l)
	}
	os.Remove(s.Path)
	server.stop()
	server.start()
	if l := server.h.Exports(); len(l) != 1 || l[0].State != "failed" || l[0].Error == "" {
		t.Fatalf("without its file: %+v", l)
	}
	if err := server.h.Unexport(testCtx(t), "disk", false); err != nil {
		t.Fatal(err)
	}
	server.stop()
	server.start()
	if l := server.h.Exports(); len(l) != 0 {
		t.Fatalf("removed, and back after a restart: %+v", l)
	}
}

func TestTwoHostsDoNotShareAStateDirectory(t *testing.T) {
	a := newServerNode(t, freePort(t))
	a.start()
	if _, err := newHost(a.cfg, Deps{Provider: a.h.transports[0].Provider}, kernelDriver); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("a second Host in %s: %v", a.cfg.StateDir, err)
	}
	b := a.cfg
	b.StateDir, b.Listen = stateDir(t), ListenAlways
	mustExport(t, a.h, memory("mem", 1<<20))
	if _, err := newHost(b, Deps{Provider: a.h.transports[0].Provider}, kernelDriver); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("a second Host on the port: %v", err)
	}
}
