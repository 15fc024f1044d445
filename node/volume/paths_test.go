package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
)

// faulty is a server and a client with two paths that go through proxies.
type faulty struct {
	server, client *testNode
	a, b           *proxy
	m              MappingInfo
}

func newFaulty(t *testing.T, x ExportSpec, s MapSpec, settings ...func(*Config)) *faulty {
	port := freePort(t)
	f := &faulty{server: newServerNode(t, port), client: newClientNode(t, port)}
	for _, set := range settings {
		set(&f.server.cfg)
		set(&f.client.cfg)
	}
	f.server.start()
	f.a = newProxy(t, "127.0.0.4:0", fmt.Sprintf("127.0.0.2:%d", port))
	f.b = newProxy(t, "127.0.0.5:0", fmt.Sprintf("127.0.0.3:%d", port))
	f.client.start()
	mustExport(t, f.server.h, x)
	s.Node, s.Name = "127.0.0.4", x.Name
	s.Paths = []PathSpec{{Dst: f.a.addr()}, {Dst: f.b.addr()}}
	f.m = mustMap(t, f.client.h, s)
	eventually(t, "two paths", func() bool { return f.up() == 2 })
	return f
}

func (f *faulty) up() int {
	i, _ := f.client.h.Mapping(f.m.ID)
	return i.PathsUp
}

func TestPathsAreCutUnderTraffic(t *testing.T) {
	f := newFaulty(t, file(t, "disk", 8<<20), MapSpec{Policy: rtrs.RoundRobin.String()}, func(c *Config) { c.MissedLimit = soon })
	x := startTraffic(t, open(t, f.m))
	x.progress(t, 50)
	for i := range 12 {
		p := []*proxy{f.a, f.b}[i%2]
		switch i % 3 {
		case 0: // reset, back at once
			p.cut()
		case 1: // away for a while
			p.set(true, false)
			x.progress(t, 20)
			p.set(false, false)
		case 2: // silent
			p.set(false, true)
			eventually(t, "the silence noticed", func() bool { return f.up() < 2 })
			x.progress(t, 20)
			p.set(false, false)
		}
		eventually(t, "two paths", func() bool { return f.up() == 2 })
		x.progress(t, 20)
	}
	x.end(t)
	if longest := time.Duration(x.longest.Load()); longest > 2*time.Second {
		t.Errorf("an operation took %v", longest)
	}
	var failovers, reconnects uint64
	for _, p := range f.client.h.Paths() {
		failovers += p.Failovers
		reconnects += p.ReconnectsOK
	}
	if failovers == 0 || reconnects < 8 {
		t.Errorf("%d failovers, %d reconnects after 12 cuts", failovers, reconnects)
	}
}

func TestBothPathsAreLostAndBack(t *testing.T) {
	f := newFaulty(t, file(t, "disk", 8<<20), MapSpec{})
	x := startTraffic(t, open(t, f.m))
	x.progress(t, 50)
	f.a.set(true, false)
	f.b.set(true, false)
	eventually(t, "no path", func() bool { i, _ := f.client.h.Mapping(f.m.ID); return i.State == StateClosed && i.PathsUp == 0 })
	// The mapping says itself why: who lists mappings need not know that there are paths.
	eventually(t, "the reason", func() bool {
		i, _ := f.client.h.Mapping(f.m.ID)
		return strings.HasPrefix(i.LastError, "there is no path: ")
	})
	time.Sleep(2 * time.Second) // the loss is the test
	if i, _ := f.client.h.Mapping(f.m.ID); i.Waiting == 0 {
		t.Errorf("nothing waits for a path: %+v", i)
	}
	f.a.set(false, false)
	f.b.set(false, false)
	x.progress(t, 100)
	x.end(t)
}

func TestOnLossErrorFailsInTime(t *testing.T) {
	f := newFaulty(t, file(t, "disk", 8<<20), MapSpec{OnLoss: OnLossError, LossTimeout: 300 * time.Millisecond, IOTimeout: time.Second})
	c := open(t, f.m)
	if err := writePattern(c, 0, 64<<10, 1, 4096); err != nil {
		t.Fatal(err)
	}
	f.a.set(true, false)
	f.b.set(true, false)
	clock := await.NewClock(t)
	err := writePattern(c, 0, 4096, 2, 4096)
	if took := clock.Now(); !errors.Is(err, syscall.EIO) || took > 1500*time.Millisecond {
		t.Fatalf("a write without a path: %v after %v", err, took)
	}
	f.a.set(false, false)
	eventually(t, "open again", func() bool { i, _ := f.client.h.Mapping(f.m.ID); return i.State == StateOpen })
	if err := writePattern(c, 0, 64<<10, 3, 4096); err != nil {
		t.Fatal(err)
	}
	if err := checkPattern(c, 0, 64<<10, 3, 4096); err != nil {
		t.Fatal(err)
	}
}

func TestServerStopsAndIsBack(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	s := file(t, "disk", 8<<20)
	server.cfg.Exports = []ExportSpec{s}
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Paths: server.twoPaths()})
	x := startTraffic(t, open(t, m))
	for range 3 {
		x.progress(t, 50)
		server.stop()
		server.start()
	}
	x.progress(t, 50)
	x.end(t)
}

func TestMemoryThatIsGoneIsNotTakenForTheSame(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.Exports = []ExportSpec{memory("mem", 8<<20)}
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem"})
	c := open(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	server.stop()
	server.start()
	if err := checkPattern(c, 0, 4096, 1, 4096); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE) {
		t.Fatalf("a read of memory that is gone: %v", err)
	}
	i, _ := client.h.Mapping(m.ID)
	if i.State != StateClosed || i.LastError == "" {
		t.Fatalf("mapping %+v", i)
	}
	if i, err := client.h.Remap(testCtx(t), m.ID); err != nil || i.State != StateOpen {
		t.Fatalf("remap: %+v, %v", i, err)
	}
	p := make([]byte, 512)
	if _, err := c.ReadAt(p, 0); err != nil || p[1] != 0 {
		t.Fatalf("after remap: %v, %x", err, p[:4])
	}
	if _, err := client.h.Remap(testCtx(t), m.ID); !errors.Is(err, syscall.EALREADY) {
		t.Fatalf("remap of an open mapping: %v", err)
	}
}

// TestEndsOfAPathWithoutLinks holds that a path is named by what it was given as long as none of its links is there, whatever is known of
// the attempt by then.
func TestEndsOfAPathWithoutLinks(t *testing.T) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.0.2:1234")
	h := &Host{transports: []Transport{{Name: TransportTCP}, {Name: "dev"}}}
	dev := &h.transports[1]
	for what, c := range map[string]struct {
		ctx  any
		over string
	}{
		"nothing was begun":           {nil, "tcp"},
		"it was only added":           {dev, "dev"},
		"an attempt that was ended":   {(*life)(nil), "tcp"},
		"an attempt without a link":   {&life{via: dev}, "dev"},
		"the first link is not there": {&life{via: dev, links: make([]*link, 2)}, "dev"},
	} {
		src, dst, via := (&client{h: h}).ends(&rtrs.ClientPath{Ctx: c.ctx, Local: local, Remote: remote})
		if src != local || dst != remote || via.Name != c.over {
			t.Errorf("%s: the ends are %v and %v, over %s", what, src, dst, via.Name)
		}
	}
}

// Paths that were closed on purpose have no error of their own.
func TestMappingWhosePathsAreDisconnectedSaysSo(t *testing.T) {
	f := newFaulty(t, file(t, "disk", 1<<20), MapSpec{})
	for _, p := range []*proxy{f.a, f.b} {
		if err := f.client.h.DisconnectPath(testCtx(t), f.m.Session, PathSpec{Dst: p.addr()}); err != nil {
			t.Fatal(err)
		}
	}
	var i MappingInfo
	eventually(t, "no path", func() bool { i, _ = f.client.h.Mapping(f.m.ID); return i.State == StateClosed && i.PathsUp == 0 })
	if i.LastError != "there is no path" {
		t.Errorf("last error %q", i.LastError)
	}
}

// TestRemovedPathLeavesNothing: a path that is removed with a read in flight on it leaves no life, and with
// that no domain, behind; the read is answered on the other one.
func TestRemovedPathLeavesNothing(t *testing.T) {
	_, client, s, m := withFaults(t, memory("disk", 1<<20), MapSpec{})
	eventually(t, "two paths", func() bool { i, _ := client.h.Mapping(m.ID); return i.PathsUp == 2 })
	s.add(blk.Rule{Ops: blk.Ops(blk.OpRead), Stall: true})
	_, dev, err := client.h.volume(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	done := make(ended, 1)
	dev.Submit([]*blk.Request{{Op: blk.OpRead, Len: 64 << 10, Buf: make([]byte, 64<<10), Queue: done}})
	eventually(t, "it is at the store", func() bool { return s.held() == 1 })
	for _, p := range client.h.Paths() {
		if p.ReadBytes >= 64<<10 {
			if err := client.h.RemovePath(testCtx(t), p.Session, p.PathSpec); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "one path", func() bool { return len(client.h.Paths()) == 1 })
	look := dev.c.look()
	n := len(dev.c.lives)
	look()
	if n != 1 {
		t.Errorf("%d lives of one path", n)
	}
	s.heal()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// stuck makes no link to one address, and does not let go of the attempt before release is closed.
type stuck struct {
	transport.OneSidedProvider
	to      netip.Addr
	release chan struct{}
}

func (p stuck) DialOneSided(ctx context.Context, local, remote netip.AddrPort, dom transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	if remote.Addr() == p.to {
		<-p.release
		return nil, nil, rdserr.ErrCanceled
	}
	return p.OneSidedProvider.DialOneSided(ctx, local, remote, dom, attr, private)
}

// TestLastPathStays: a path that is on its way out is none that a session could go on by.
func TestLastPathStays(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	client.links = func(p transport.OneSidedProvider) transport.OneSidedProvider {
		return stuck{p, server.cfg.Addresses[1], release}
	}
	server.start()
	client.start()
	defer free()
	mustExport(t, server.h, memory("disk", 1<<20))
	paths := server.twoPaths()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Paths: paths[:1]})
	if _, err := client.h.AddPath(testCtx(t), m.Session, paths[1]); err != nil {
		t.Fatal(err)
	}
	if err := client.h.RemovePath(testCtx(t), m.Session, paths[1]); err != nil {
		t.Fatal(err)
	}
	if n := len(client.h.Paths()); n != 2 { // it waits for the dial
		t.Errorf("%d paths while one is on its way out; this shows nothing", n)
	}
	is(t, "the other one", client.h.RemovePath(testCtx(t), m.Session, paths[0]), syscall.EBUSY, "last path")
	free()
	eventually(t, "one path", func() bool { return len(client.h.Paths()) == 1 })
	if i, err := client.h.Mapping(m.ID); err != nil || i.State != StateOpen || i.PathsUp != 1 {
		t.Errorf("%v with %d paths, %v", i.State, i.PathsUp, err)
	}
}
