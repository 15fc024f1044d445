package client

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// TestMayBindIsAsked: who may not have a port does not get it, by its number or by
// chance, and a grant by uid or gid gives it to its owner alone.
func TestMayBindIsAsked(t *testing.T) {
	uid, gid := uint32(2000), uint32(3000)
	n, cfg := startClientsWith(t, func(c *config.Config) {
		c.Ports = []config.PortGrant{{Range: config.PortRange{First: 100, Last: 110}, UID: &uid}, {Range: config.PortRange{First: 5000, Last: 5009}, GID: &gid, Exclusive: true}}
	})
	for _, c := range []struct {
		id   config.Identity
		port uint16
		ok   bool
	}{
		{config.Identity{UID: 2000, GID: 1}, 100, true}, {config.Identity{UID: 2000, GID: 1}, 110, true}, {config.Identity{UID: 2000, GID: 1}, 111, false},
		{config.Identity{UID: 2001, GID: 1}, 105, false}, {config.Identity{UID: 2001, GID: 3000}, 5009, true}, {config.Identity{UID: 2001, GID: 1}, 5009, false},
		{config.Identity{UID: 2001, GID: 1}, 5010, true}, {config.Identity{UID: 0}, 7, true}, {config.Identity{UID: 0, Remote: true}, 7, false},
		{config.Identity{UID: 2000, GID: 3000, Remote: true}, 100, false},
	} {
		s := &sockStream{front: n.clients, id: c.id}
		_, _, err := s.prepare(clienttest.BindTo(cfg.RDS.Addresses[0], c.port), 1000)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, rdserr.ErrPerm) {
			t.Errorf("port %d for %+v: %v", c.port, c.id, err)
		}
		if err == nil {
			n.clients.sockets.remove(s)
			n.clients.sockets.remove(s) // again: nothing
		}
	}
	if b := n.clients.Budget(); b.Used != 0 || b.Refused != 0 {
		t.Errorf("the sockets left are %+v", b)
	}
}

// TestSocketLimits: the limit of all sockets and of each user's, at their edges; what
// is refused holds no memory, and a place that is given back is there again.
func TestSocketLimits(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), nil)
	table := newSocketTable(5, 3, n.deps.Memory)
	var open []*sockStream
	before := n.deps.Memory.Used()
	reserve := func(uid uint32, want error) {
		t.Helper()
		s := &sockStream{front: n.clients, id: config.Identity{UID: uid}}
		err := table.reserve(s, 4096)
		if !errors.Is(err, want) {
			t.Errorf("socket %d, of user %d: %v, want %v", len(open), uid, err, want)
		}
		if err == nil {
			open = append(open, s)
		}
		if held := n.deps.Memory.Used() - before; held != int64(len(open))*4096 {
			t.Errorf("%d sockets hold %d bytes", len(open), held)
		}
	}
	for range 3 {
		reserve(1, nil)
	}
	reserve(1, rdserr.ErrTooMany)
	reserve(2, nil)
	reserve(2, nil)
	reserve(3, rdserr.ErrTooMany)
	table.remove(open[0])
	open = open[1:]
	reserve(1, nil)
	if b := table.budget(); b.Used != 5 || b.Limit != 5 || b.Refused != 2 {
		t.Errorf("the sockets are %+v", b)
	}
	table.refuse(base.ErrDraining)
	reserve(4, rdserr.ErrShutdown)
	for _, s := range open {
		table.remove(s)
		table.remove(s)
	}
	if len(table.byUser) != 0 || table.budget().Used != 0 || n.deps.Memory.Used() != before {
		t.Errorf("%v, %+v and %d bytes are left", table.byUser, table.budget(), n.deps.Memory.Used()-before)
	}
	if err := table.reserve(&sockStream{front: n.clients, id: config.Identity{UID: 1}}, 1<<50); err == nil || n.deps.Memory.Used() != before {
		t.Errorf("more than the node has: %v, %d bytes are left", err, n.deps.Memory.Used()-before)
	}
}

func TestRandomPortAvoidsGrantedRanges(t *testing.T) {
	cfg := clienttest.Config(t)
	uid := uint32(12345)
	cfg.Ports = []config.PortGrant{{UID: &uid, Range: config.PortRange{First: 2, Last: 65534}, Exclusive: true}}
	n := newWorld(t, cfg, nil)
	eng, err := n.clients.engineFor(cfg.RDS.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	s := &sockStream{front: n.clients, eng: eng, id: config.Identity{UID: 54321}}
	sock, _, err := s.bindEngine(0, rds.SocketOptions{}, nil)
	if err != nil || sock.Addr().Port() != 65535 {
		t.Errorf("bound %v, %v; the only port left is 65535", sock, err)
	}
	if _, _, err = s.bindEngine(0, rds.SocketOptions{}, nil); !errors.Is(err, rdserr.ErrAddrInUse) {
		t.Errorf("second bind: %v", err)
	}
}

// holds counts how often the lock of an engine is taken.
type holds struct {
	*testEngine
	n int
}

func (h *holds) Lock() (*rds.Engine, time.Duration) {
	h.n++
	return h.testEngine.Lock()
}

// TestRandomPortHoldsNobodyUp: where no port is a user's, a bind of any costs next to nothing and
// does not take the lock; where all of them are taken it lets go of it every few.
func TestRandomPortHoldsNobodyUp(t *testing.T) {
	cfg := clienttest.Config(t)
	gid := uint32(50)
	cfg.Ports = []config.PortGrant{{GID: &gid, Range: config.PortRange{First: 1024, Last: 65535}, Exclusive: true}}
	c := rds.DefaultConfig()
	c.MaxSockets = 5000
	eng := &holds{testEngine: newTestEngine(cfg.RDS.Addresses[0], c)}
	n := newWorld(t, cfg, func(netip.Addr) datagram.Engine { return eng })
	s := &sockStream{front: n.clients, eng: eng, id: config.Identity{UID: 54321}}
	refused := func() {
		if _, _, err := s.bindEngine(0, rds.SocketOptions{}, nil); !errors.Is(err, rdserr.ErrAddrInUse) {
			t.Errorf("a bind without a port to have: %v", err)
		}
	}
	if allocs := testing.AllocsPerRun(10, refused); allocs > 30 || eng.n > 0 {
		t.Errorf("a bind without a port to have allocates %v times and takes the lock %d times", allocs, eng.n)
	}

	const few = 2000
	cfg.Ports[0].Range.Last = 65535 - few
	e, _ := eng.testEngine.Lock()
	for p := 65535 - few + 1; p <= 65535; p++ {
		if _, err := e.Bind(uint16(p), rds.SocketOptions{UID: 1}); err != nil {
			t.Fatal(err)
		}
	}
	eng.testEngine.Unlock()
	refused()
	if eng.n < few/256 {
		t.Errorf("%d ports are looked at with the lock taken %d times", few, eng.n)
	}
	// The last that is free is found, also one that was closed just now.
	_, now := eng.testEngine.Lock()
	e.Socket(65000).Close(now)
	eng.testEngine.Unlock()
	told := 0
	sock, _, err := s.bindEngine(0, rds.SocketOptions{}, func(*rds.Socket) { told++ })
	if err != nil || sock.Addr().Port() != 65000 || told != 1 {
		t.Errorf("bound %v, %v, and told %d times", sock, err, told)
	}
}

// TestRandomPortIsRandom: who may have some ports gets any of them, not those below 1024 that he may name,
// not those that are held for others, and last those that were closed lately.
func TestRandomPortIsRandom(t *testing.T) {
	cfg := clienttest.Config(t)
	uid, gid := uint32(1), uint32(50)
	cfg.Ports = []config.PortGrant{{GID: &gid, Range: config.PortRange{First: 2, Last: 65535}, Exclusive: true},
		{UID: &uid, Range: config.PortRange{First: 100, Last: 110}}, {UID: &uid, Range: config.PortRange{First: 5000, Last: 5019}}, {UID: &uid, Range: config.PortRange{First: 7000, Last: 7019}}}
	eng := newTestEngine(cfg.RDS.Addresses[0], rds.DefaultConfig())
	e, now := eng.Lock()
	e.Hold(now, map[uint16]uint32{5003: 2}, time.Hour)
	eng.Unlock()
	n := newWorld(t, cfg, func(netip.Addr) datagram.Engine { return eng })
	s := &sockStream{front: n.clients, eng: eng, id: config.Identity{UID: uid}}
	var got, again []uint16
	for range 39 {
		sock, _, err := s.bindEngine(0, rds.SocketOptions{UID: uid}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, sock.Addr().Port())
		if _, now := eng.Lock(); len(got) < 30 {
			sock.Close(now)
		}
		eng.Unlock()
	}
	if again = slices.Compact(slices.Sorted(slices.Values(got))); len(again) != 39 || again[0] < 1024 || slices.Contains(again, 5003) {
		t.Errorf("ports are %v", again)
	}
	if slices.IsSorted(got[:20]) {
		t.Errorf("they come in order: %v", got)
	}
}
