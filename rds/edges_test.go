package rds

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// A peer that is not further behind than the log is long gets changes, each port
// once and as it stands; one more, and it gets the map. Who knows all gets nothing.
func TestCongestionLogEdges(t *testing.T) {
	e, now := lone(t, nil)
	if _, delta, whole := e.localCongestion(0, false); delta != nil || whole != nil {
		t.Error("there is something to tell of ports that never were congested")
	}
	if _, _, whole := e.localCongestion(0, true); len(whole) != 8192 {
		t.Errorf("who wants the whole map gets %d bytes", len(whole))
	}
	for i := range 3 * congLog {
		e.setCongested(now, uint16(100+i), true)
	}
	for _, behind := range []uint64{0, 1, 2, congLog - 1, congLog, congLog + 1, 2 * congLog} {
		ver, delta, whole := e.localCongestion(e.cver-behind, false)
		want, map8k := int(behind), 0
		if behind > congLog {
			want, map8k = 0, 8192
		}
		if ver != e.cver || len(delta) != want || len(whole) != map8k {
			t.Errorf("%d behind: %d changes, %d bytes of map", behind, len(delta), len(whole))
		}
		for i, d := range delta {
			if int(d.Port) != 100+3*congLog-1-i || !d.Congested {
				t.Errorf("%d behind: change %d is %+v", behind, i, d)
			}
		}
	}
	since := e.cver
	for i := range 10 {
		e.setCongested(now, 7, i%2 == 0)
	}
	if _, delta, _ := e.localCongestion(since, false); len(delta) != 1 || delta[0].Port != 7 || delta[0].Congested {
		t.Errorf("a port that changed ten times is told as %+v", delta)
	}
}

// Notices are bounded: at 4096 the older half is lost, which is said, and nothing else.
func TestNoticesAreBounded(t *testing.T) {
	e, _ := lone(t, nil)
	e.Watch(true)
	for i := range 4097 {
		e.note(Notice{Endpoint: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i)), Local: true, Congested: true})
		if want := i%4096 + 1 + i/4096*2048; len(e.cnotes) != want {
			t.Fatalf("%d notices after %d", len(e.cnotes), i+1)
		}
	}
	o := taken(e)
	l := o.Notices
	if !o.Lost || taken(e).Lost {
		t.Error("that some are lost is not said, or twice")
	}
	for i, n := range l {
		if int(n.Endpoint.Port()) != 2048+i {
			t.Fatalf("notice %d is of port %d", i, n.Endpoint.Port())
		}
	}
	if len(l) != 2049 || len(e.cnotes) != 0 {
		t.Errorf("%d notices, and %d again", len(l), len(e.cnotes))
	}
}

// CongestedOf gives pages of no more than was asked for, which together are all.
func TestCongestedPages(t *testing.T) {
	e, now := lone(t, nil)
	for i := range 10 {
		e.setCongested(now, uint16(1000+i*i), true)
	}
	for page := 1; page <= 11; page++ {
		var all []uint16
		for from := 0; from >= 0; {
			k := 0
			n, next := e.CongestedOf(e.Self(), AllPorts, from, page, func(c *CongestedPort) {
				k++
				all = append(all, c.Endpoint.Port())
			})
			if n != k || n > page {
				t.Fatalf("a page of %d is said to have %d, and has %d", page, n, k)
			}
			from = next
		}
		if len(all) != 10 {
			t.Errorf("pages of %d: %d ports", page, len(all))
		}
		for i, p := range all {
			if int(p) != 1000+i*i {
				t.Errorf("pages of %d: port %d is %d", page, i, p)
			}
		}
	}
}

// A page of CongestedOf asks few clients what they held back, however many destinations are
// open to its ports, and each port is listed.
func TestCongestedPagesOfManyFlows(t *testing.T) {
	e, now := lone(t, nil)
	const ports, openers = 64, 40
	for i := range ports {
		e.setCongested(now, uint16(1000+i), true)
	}
	var boxes []*box
	for i := range openers {
		b := bindBox(t, e, uint16(5000+i), 1<<20, SocketOptions{})
		b.calls = 1
		boxes = append(boxes, b)
		for i := range ports {
			mustOpen(t, b.s, netip.AddrPortFrom(e.local, uint16(1000+i)), nil)
		}
	}
	asked := func() (n int) {
		for _, b := range boxes {
			n, b.felt = n+b.felt, 0
		}
		return n
	}
	const most = 128
	next := uint16(1000)
	for from := 0; from >= 0; {
		_, from = e.CongestedOf(e.Self(), AllPorts, from, most, func(c *CongestedPort) {
			if c.Endpoint.Port() != next || c.Waiting != openers {
				t.Errorf("%v with %d sockets that wait, want port %d and %d", c.Endpoint, c.Waiting, next, openers)
			}
			next++
		})
		if n := asked(); n > most+openers {
			t.Fatalf("%d destinations were looked at for one page of %d", n, most)
		}
	}
	if next != 1000+ports {
		t.Errorf("the last port listed is %d", next-1)
	}

	// Of one port with very many destinations some are looked at.
	for i := range feltMost {
		mustOpen(t, bindBox(t, e, uint16(10000+i), 0, SocketOptions{}).s, netip.AddrPortFrom(e.local, 1000), nil)
	}
	for _, s := range e.Bound() {
		if b := s.sink.(*box); b.s.port >= 10000 {
			boxes = append(boxes, b)
		}
	}
	asked()
	if cost, next := e.CongestedOf(e.Self(), AllPorts, 0, 1, func(*CongestedPort) {}); cost != 1+feltMost || next != 1001 || asked() != feltMost {
		t.Errorf("a port that %d destinations are open to costs %d, and port %d is next", openers+feltMost, cost, next)
	}
}

// What makes a train unfit, at the last fit and the first unfit value.
func TestTrainEdges(t *testing.T) {
	const largest = 1000
	for _, c := range []struct {
		count, bytes int
		table        bool
		want         error
	}{
		{0, 0, false, rdserr.ErrInvalid}, {1, 0, false, nil}, {wire.MaxTrain, wire.MaxTrain, false, nil}, {wire.MaxTrain + 1, wire.MaxTrain + 1, false, rdserr.ErrInvalid},
		{2, 7, true, rdserr.ErrInvalid}, {2, 8, true, nil},
		{1, largest, false, nil}, {1, largest + 1, false, rdserr.ErrTooLarge},
		{2, 2 * largest, false, nil}, {2, 2*largest + 2, false, rdserr.ErrTooLarge}, {2, 3, false, rdserr.ErrInvalid},
		{wire.MaxTrainBytes / 512, wire.MaxTrainBytes, false, nil}, {wire.MaxTrainBytes/512 + 1, wire.MaxTrainBytes + 512, false, rdserr.ErrTooLarge},
	} {
		if c.count > wire.MaxTrain && c.want == nil {
			continue
		}
		err := checkTrain(wire.Train{Count: c.count, Table: c.table, Body: make([]byte, c.bytes)}, largest)
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%d datagrams, %d bytes, table %v: %v, want %v", c.count, c.bytes, c.table, err, c.want)
		}
	}
}

// A send buffer of n bytes takes datagrams until n bytes are used, and the sender is
// woken when no more than half of it is.
func TestSendBufferEdges(t *testing.T) {
	for _, c := range []struct {
		name       string
		most, fits int
		tune       func(*Config)
		n          int
	}{
		{"bytes", 1000, 10, func(*Config) {}, 100},
		{"datagrams", 1 << 20, 8, func(c *Config) { c.MaxUndecided = 8 }, 1},
	} {
		e, now := lone(t, c.tune)
		s, err := e.Bind(5000, SocketOptions{SndBufBytes: c.most})
		if err != nil {
			t.Fatal(err)
		}
		dst := func(i int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(4000+i)) }
		for i := range c.fits {
			if err := s.Send(now, dst(i), make([]byte, c.n), uint64(i), Reported); err != nil {
				t.Fatalf("%s: send %d: %v", c.name, i, err)
			}
		}
		if err := s.Send(now, dst(0), make([]byte, c.n), 99, Reported); err != rdserr.ErrWouldBlock {
			t.Errorf("%s: one too many: %v", c.name, err)
		}
		if err := s.Send(now, dst(0), make([]byte, min(c.most, 1<<20)+1), 99, Reported); !errors.Is(err, rdserr.ErrTooLarge) {
			t.Errorf("%s: larger than the buffer: %v", c.name, err)
		}
		s.events = 0
		for i := range c.fits {
			if n, _, err := s.Cancel(now, dst(i)); n != 1 || err != nil {
				t.Fatalf("%s: %d cancelled, %v", c.name, n, err)
			}
			s.Queue().Outcomes(nil)
			if got, want := s.events&EvWritable != 0, i+1 >= c.fits/2; got != want {
				t.Errorf("%s: writable %v when %d of %d are left", c.name, got, c.fits-i-1, c.fits)
			}
		}
		if i := s.Info(); i.SendQueued != 0 || i.Undecided != 0 || s.Stats.Cancelled != uint64(c.fits) {
			t.Errorf("%s: %+v is left, %d were cancelled", c.name, i, s.Stats.Cancelled)
		}
	}
}

// A closed socket says so to everybody.
func TestClosedSocket(t *testing.T) {
	e, now := lone(t, nil)
	s, _ := e.Bind(5000, SocketOptions{})
	to := netip.MustParseAddrPort("10.0.0.9:4000")
	if err := s.Send(now, to, []byte("x"), 1, Reported); err != nil {
		t.Fatal(err)
	}
	s.Close(now)
	if err := s.Send(now, to, []byte("x"), 2, Reported); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if queued, err := s.SendWait(now, to, []byte("x"), 3, Reported, 0, nil); queued || !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("SendWait: %v, %v", queued, err)
	}
	pe, err := e.Peer(to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if q := pe.c.Queued(); q != (conn.Queued{}) {
		t.Errorf("%+v is left of a closed socket", q)
	}
	if len(e.socks) != 0 || s.undecided != 0 || s.used != 0 {
		t.Errorf("%d sockets, %d datagrams and %d bytes are left", len(e.socks), s.undecided, s.used)
	}
}

// Of one peer's ports that sends were refused for 4096 are remembered, however many there
// are, and those that are stay counted.
func TestBlockedPortsAreBounded(t *testing.T) {
	e, now := lone(t, nil)
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	pe.CongestionMap(now, mapOf(func(p int) bool { return p >= 1000 && p < 6000 }))
	for p := uint16(1000); p < 6000; p++ {
		pe.block(now, p)
		pe.block(now, 1000)
	}
	if len(pe.ports) != 4096 || pe.blockedPorts != 4096 || pe.ports[1000].blocked != 5001 {
		t.Errorf("%d ports are remembered, %d counted, the first %d times", len(pe.ports), pe.blockedPorts, pe.ports[1000].blocked)
	}
	e.holds(t)
	pe.CongestionMap(now, make([]byte, 8192))
	now = ticks(e, now+1, time.Second)
	if e.runDeferred(now); len(pe.ports) != 0 || pe.blockedPorts != 0 {
		t.Errorf("all is clear, and %d ports are remembered, %d counted", len(pe.ports), pe.blockedPorts)
	}
	e.holds(t)
}

// A flush whose caller gave up is not answered, whichever it is; all others are, in turn.
func TestUnflush(t *testing.T) {
	for gone := range uint64(4) {
		e, now := lone(t, nil)
		s, err := e.Bind(5000, SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dst := func(i uint64) netip.AddrPort {
			return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(4000+i))
		}
		for i := range uint64(3) {
			if err := s.Send(now, dst(i), []byte("x"), i, Reported); err != nil {
				t.Fatal(err)
			}
			s.Flush(i)
		}
		s.Flush(3) // waits with the third
		s.Unflush(gone)
		s.Unflush(99)
		var want, got []uint64
		for i := range uint64(3) {
			if _, _, err := s.Cancel(now, dst(i)); err != nil {
				t.Fatal(err)
			}
			got = append(got, s.Flushed()...)
		}
		for i := range uint64(4) {
			if i != gone {
				want = append(want, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("without flush %d: %v are answered, want %v", gone, got, want)
		}
	}
}

// A send that was refused because of the peer's map wants a link, and goes on wanting it
// until the port is clear: the map may be of a former incarnation of the peer.
func TestBlockedGoesOnConnecting(t *testing.T) {
	e, now := lone(t, nil)
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	dials := func() int { return failingDials(e, &now) }
	pe.CongestionMap(now, mapOf(func(p int) bool { return p == 4000 || p == 4001 }))
	pe.block(now, 4000)
	pe.block(now, 4001)
	if n := dials(); n < 3 {
		t.Errorf("%d attempts to connect", n)
	}
	pe.CongestionDelta(now, wire.PortState{Port: 4000})
	if n := dials(); n < 3 {
		t.Errorf("%d attempts to connect, and a port is congested still", n)
	}
	pe.CongestionDelta(now, wire.PortState{Port: 4001})
	dials() // the one that is due already
	if n := dials(); n != 0 {
		t.Errorf("%d attempts to connect, and nobody waits", n)
	}
}

// TestOldMapOnlyClears: a map that may be older than one that was told makes no port congested.
func TestOldMapOnlyClears(t *testing.T) {
	e, now := lone(t, nil)
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.9"))
	if err != nil {
		t.Fatal(err)
	}
	pe.CongestionMap(now, mapOf(func(p int) bool { return p == 4000 || p == 4001 }))
	if err := pe.Told(now, conn.ToldOldMap, mapOf(func(p int) bool { return p == 4001 || p == 4002 })); err != nil {
		t.Fatal(err)
	}
	if pe.Congested(4000) || !pe.Congested(4001) || pe.Congested(4002) {
		t.Errorf("4000 %v, 4001 %v, 4002 %v", pe.Congested(4000), pe.Congested(4001), pe.Congested(4002))
	}
}

// failingDials fails what is tried within 20 s, and counts it.
func failingDials(e *Engine, now *time.Duration) (n int) {
	for end := *now + 20*time.Second; *now < end; {
		for _, a := range takeActions(e, nil) {
			if a.Kind == conn.ActDial {
				n++
				a.Lane.DialFailed(*now, a.Attempt, errors.New("nobody is there"))
			}
		}
		*now = ticks(e, *now, time.Second)
	}
	return n
}

// TestBlockedEndsWithItsSockets: when whoever was refused, or waited, has gone, a peer that went while
// its port was congested is not connected to any more, and may make room for others.
func TestBlockedEndsWithItsSockets(t *testing.T) {
	e, now := lone(t, nil)
	dst := netip.MustParseAddrPort("10.0.0.9:4000")
	pe, err := e.Peer(dst.Addr())
	if err != nil {
		t.Fatal(err)
	}
	pe.CongestionMap(now, mapOf(func(p int) bool { return p == 4000 || p == 4001 }))
	var l []*Socket
	for range 3 {
		s, err := e.Bind(0, SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l = append(l, s)
	}
	payload := make([]byte, 10)
	if err := l[0].Send(now, dst, payload, 1, Quiet); err != rdserr.ErrCongested {
		t.Fatal(err)
	}
	if _, err := l[1].SendWait(now, dst, payload, 1, Quiet, now+time.Second, nil); err != nil {
		t.Fatal(err)
	}
	d, err := l[2].Open(netip.AddrPortFrom(dst.Addr(), 4001), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l[2].SendWait(now, d.Addr(), payload, 1, Quiet, now+time.Second, nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range l {
		if n := failingDials(e, &now); n < 3 {
			t.Errorf("%d attempts to connect, and a socket was refused", n)
		}
		e.holds(t)
		s.Close(now)
		e.End()
	}
	failingDials(e, &now) // the one that is due already
	if n := failingDials(e, &now); n != 0 {
		t.Errorf("%d attempts to connect, and nobody waits", n)
	}
	if e.holds(t); len(pe.ports) != 0 || pe.blockedPorts != 0 {
		t.Errorf("%d ports are remembered, %d counted", len(pe.ports), pe.blockedPorts)
	}
	if !e.Evict(now) {
		t.Error("the peer makes no room")
	}
}
