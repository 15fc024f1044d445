package rds

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
)

// A node that nobody configured: these figures are in docs/operations.md and in what
// peers count on.
func TestDefaults(t *testing.T) {
	c := DefaultConfig()
	if c.Budget.Limit != 1<<30 {
		t.Errorf("a budget of %d bytes", c.Budget.Limit)
	}
	got := [...]int{c.SndBufBytes, c.RcvBufBytes, c.MaxBufBytes, c.HardFactor, c.MaxPeers, c.MaxSockets, c.MaxUndecided, c.MaxOutcomes}
	if want := [...]int{1 << 20, 1 << 20, 64 << 20, 2, 10000, 10000, 1 << 16, 1 << 16}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if want := (conn.Config{
		Lanes: 8, CreditLog2: 12, ReconnectMin: 100 * time.Millisecond, ReconnectMax: 5 * time.Second,
		DialTimeout: 5 * time.Second, ProbeTimeout: 3 * time.Second, Heartbeat: 10 * time.Second, DeadAfter: 30 * time.Second,
		AckDelay: 20 * time.Millisecond, AckPoll: 2 * time.Millisecond, MapInterval: 2 * time.Millisecond, Ping: true,
		AckFrames: 256, AckBytes: 1 << 20, AckStep: 128 << 10, Trains: true, LaneLoad: 64 << 10,
	}); c.Conn != want {
		t.Errorf("%+v, want %+v", c.Conn, want)
	}
}

// Culprits looks at so many datagrams and not at one more.
func TestCulpritsLook(t *testing.T) {
	e, now := lone(t, nil)
	s, err := e.Bind(5000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		from, err := e.Bind(uint16(6000+i%2), SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := from.Send(now, s.Addr(), make([]byte, 10+i), uint64(i), Quiet); err != nil {
			t.Fatal(err)
		}
		from.Close(now)
	}
	// Of those that are not looked at as many are taken to be of each sender as of the others.
	for _, c := range []struct {
		look int
		want [][2]int // datagrams and bytes of each
	}{
		{1, [][2]int{{6, 75}}}, {2, [][2]int{{3, 39}, {3, 35}}}, {3, [][2]int{{4, 50}, {2, 25}}}, {4, [][2]int{{3, 39}, {3, 35}}},
		{5, [][2]int{{3, 45}, {2, 30}}}, {6, [][2]int{{3, 39}, {3, 36}}}, {7, [][2]int{{3, 39}, {3, 36}}},
	} {
		l, looked := s.culprits(9, c.look)
		var got [][2]int
		for _, c := range l {
			got = append(got, [2]int{c.N, c.Bytes})
		}
		if looked != min(c.look, 6) || !slices.Equal(got, c.want) {
			t.Errorf("%d looked at of %d: %v, want %v", looked, c.look, got, c.want)
		}
	}
	if l := s.Culprits(9); len(l) != 2 || l[0].Bytes != 39 || l[1].Bytes != 36 || l[0].Source.Port() != 6001 {
		t.Errorf("%+v", l)
	}
	if l := s.Culprits(1); len(l) != 1 {
		t.Errorf("%d of at most 1", len(l))
	}
}

// TestCulpritsOfPairs: what lies in pairs takes no look away from the queue, and is told as it is.
func TestCulpritsOfPairs(t *testing.T) {
	e, now := lone(t, nil)
	b := bindBox(t, e, 5000, 1<<20, SocketOptions{})
	in, queued := bind(t, e, 6000, SocketOptions{}), bind(t, e, 6001, SocketOptions{})
	for range 5000 {
		if err := queued.Send(now, b.s.Addr(), make([]byte, 10), 0, Quiet); err != nil {
			t.Fatal(err)
		}
	}
	b.paired = map[netip.AddrPort]PairedUnread{in.Addr(): {1024, 2048}}
	want := []Culprit{{queued.Addr(), 5000, 50000}, {in.Addr(), 1024, 2048}}
	if l, looked := b.s.culprits(8, 1024); looked != 1024 || !slices.Equal(l, want) {
		t.Errorf("%d looked at: %+v, want %+v", looked, l, want)
	}
	b.paired[queued.Addr()] = PairedUnread{7, 70} // of what it has queued and what it has in a pair the sum
	want[0] = Culprit{queued.Addr(), 5007, 50070}
	if l, _ := b.s.culprits(8, 1024); !slices.Equal(l, want) {
		t.Errorf("%+v, want %+v", l, want)
	}
	n := map[netip.AddrPort]int{}
	b.s.EachQueued(func(src netip.AddrPort, _ int) bool { n[src]++; return true })
	if n[in.Addr()] != 1024 || n[queued.Addr()] != 5007 {
		t.Errorf("listed are %v", n)
	}
	b.paired[in.Addr()] = PairedUnread{1 << 40, 1 << 41}
	b.s.EachQueued(func(src netip.AddrPort, _ int) bool { n[src]++; return n[src] < 1030 || src != in.Addr() })
	if n[in.Addr()] != 1030 {
		t.Errorf("%d of a pair are listed after the last that was asked for", n[in.Addr()]-1030)
	}
}

// Whoever may be no peer is refused at the door, and makes no peer.
func TestAcceptRefuses(t *testing.T) {
	e, now := lone(t, nil)
	e.cfg.AllowPeer = func(a netip.Addr) bool { return a.As4()[3] != 66 }
	for addr, want := range map[string]error{"10.0.0.66": rdserr.ErrHostDown, "0.0.0.0": rdserr.ErrDestination, "224.0.0.1": rdserr.ErrInvalid,
		"255.255.255.255": rdserr.ErrInvalid, "fd00::1": rdserr.ErrFamily, e.Local().String(): rdserr.ErrInvalid} {
		if a, err := e.Accept(now, netip.AddrPortFrom(netip.MustParseAddr(addr), 40000)); !errors.Is(err, want) || a.Link || a.Lane != nil {
			t.Errorf("%s: %+v, %v; want %v", addr, a, err, want)
		}
	}
	if len(e.Peers()) != 0 {
		t.Errorf("%d peers", len(e.Peers()))
	}
}
