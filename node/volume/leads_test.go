package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestSessionsLeadToOneNode holds that a mapping does not join a session with another node than it names, by the name that it gives the
// session or by one that was made of the node's: the volume of that name there would be opened.
func TestSessionsLeadToOneNode(t *testing.T) {
	port := freePort(t)
	one, two, client := newServerNode(t, port), newServerNode(t, port), newClientNode(t, port)
	two.cfg.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.6")}
	var unknown atomic.Bool
	was := lookUpIP
	lookUpIP = func(ctx context.Context, network, host string) ([]netip.Addr, error) {
		switch {
		case unknown.Load() && strings.HasPrefix(host, "db"):
			return nil, errors.New("no name server")
		case host == "db.a":
			return one.cfg.Addresses, nil
		case host == "db_a":
			return two.cfg.Addresses, nil
		}
		return was(ctx, network, host)
	}
	t.Cleanup(func() { lookUpIP = was })
	for _, n := range []*testNode{one, two} {
		n.start()
		mustExport(t, n.h, memory("a", 1<<20))
		mustExport(t, n.h, memory("b", 1<<20))
		mustExport(t, n.h, memory("c", 1<<20))
	}
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: "db.a", Name: "a", Paths: []PathSpec{{Dst: one.node()}}, Persist: true})
	for _, s := range []MapSpec{
		{Node: "db_a"}, // whose session has that name
		{Node: two.node(), Session: m.Session},
		{Node: two.node(), Session: m.Session, Paths: []PathSpec{{Dst: two.node()}}},
		{Node: one.node() + ":1", Session: m.Session},
	} {
		s.Name = "b"
		if i, err := client.h.Map(testCtx(t), s); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s by %v: mapped as %+v, %v", s.Node, s.Paths, i, err)
		}
		if i, err := client.h.RemoteInfo(testCtx(t), s); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s by %v: it has %+v, %v", s.Node, s.Paths, i, err)
		}
	}
	// By another of its names, and by the same where no name can be looked up.
	other := mustMap(t, client.h, MapSpec{Node: one.node(), Name: "b", Session: m.Session, Persist: true})
	unknown.Store(true)
	mustMap(t, client.h, MapSpec{Node: "db.a", Name: "c"})
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: "db_a", Name: "d"}); !errors.Is(err, rdserr.ErrHostDown) {
		t.Errorf("a name that cannot be looked up: %v", err)
	}
	client.stop()
	client.start()
	for _, m := range []MappingInfo{m, other} {
		if i := back(t, client, m.ID); i.State != StateOpen || i.Session != m.Session {
			t.Errorf("after a restart: %+v", i)
		}
	}
}

// TestSessionsOfMappingsThatWait: the session of a mapping that is not back yet is not made anew by another mapping for another node, or
// as what that one asks for: the former would go on with another node's volume, or not as it was.
func TestSessionsOfMappingsThatWait(t *testing.T) {
	port := freePort(t)
	one, two, client := newServerNode(t, port), newServerNode(t, port), newClientNode(t, port)
	two.cfg.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.6")}
	var unknown atomic.Bool
	was := lookUpIP
	lookUpIP = func(ctx context.Context, network, host string) ([]netip.Addr, error) {
		switch {
		case host == "db.a" && unknown.Load():
			return nil, errors.New("no name server")
		case host == "db.a":
			return one.cfg.Addresses[:1], nil
		}
		return was(ctx, network, host)
	}
	t.Cleanup(func() { lookUpIP = was })
	for _, n := range []*testNode{one, two} {
		n.start()
		mustExport(t, n.h, file(t, "a", 1<<20))
		mustExport(t, n.h, file(t, "b", 1<<20))
	}
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: "db.a", Name: "a", Session: "app", Persist: true, OnLoss: OnLossWait, Unfenced: UnfencedWait, QueueDepth: 7})
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	client.stop()
	unknown.Store(true)
	client.start()
	for _, s := range []MapSpec{{Node: two.node()}, {Node: "db.a", Paths: []PathSpec{{Dst: one.node()}}, QueueDepth: 9}} {
		s.Name, s.Session = "b", "app"
		if i, err := client.h.Map(testCtx(t), s); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("another of %s: mapped as %+v, %v", s.Node, i, err)
		}
	}
	as := func(i MappingInfo) string { return fmt.Sprint(i.State, i.Unfenced, i.QueueDepth) }
	n := mustMap(t, client.h, MapSpec{Node: "db.a", Name: "b", Session: "app", Paths: []PathSpec{{Dst: one.node()}}, Persist: true})
	if as(n) != as(m) {
		t.Errorf("it is %+v, and the one that waits is %+v", n, m)
	}
	c, _ := opensAgain(t, m)
	if err := checkPattern(c, 0, 4096, 1, 4096); err != nil {
		t.Error(err)
	}
	if i, err := client.h.Mapping(m.ID); err != nil || as(i) != as(m) {
		t.Errorf("it is back as %+v, %v", i, err)
	}
}
