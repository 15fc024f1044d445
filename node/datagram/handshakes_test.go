package datagram

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// acceptedLane gives the host a link that remote made for one of its lanes.
func (s *seam) acceptedLane(remote netip.Addr, lane int) *fakeLink {
	l := &fakeLink{local: netip.AddrPortFrom(seamLocal, 16385), remote: netip.AddrPortFrom(remote, uint16(40000+lane))}
	s.h.Accept(l)
	return l
}

func (s *seam) shakes() uint64 { return s.a.peers.Budgets()[0].Used }

func (s *seam) ready(remote netip.Addr, lane int) bool {
	e, _ := s.h.Lock()
	defer s.h.Unlock()
	p := e.Known(remote).Conn().LaneAt(lane)
	return p != nil && p.Ready()
}

// kernelShake is a kernel's ping, and its answer to ours.
func kernelShake(lanes uint16) (l []*transport.Frame) {
	x := wire.Handshake{NPaths: lanes, SportIdx: true}
	for i, p := range [][2]uint16{{wire.PortProbe, wire.PortPing}, {wire.PortPing, wire.PortProbe}} {
		h := wire.Header{Seq: uint64(i + 1), SPort: p[0], DPort: p[1], Ext: x.Encode()}
		l = append(l, &transport.Frame{Raw: h.Append(nil)})
	}
	return l
}

// TestHandshakeOfIdleLanes: the further lanes of a kernel become ready without a byte from it,
// when its TCP has taken something, and again at once when it connects anew. They have said who
// they are by then.
func TestHandshakeOfIdleLanes(t *testing.T) {
	s := newSeam(t, nil)
	first := s.acceptedLane(seamLower, 0)
	if err := first.bring(t, kernelShake(wire.MaxLanes)...); err != nil {
		t.Fatal(err)
	}
	var further []*fakeLink
	for i := 1; i < wire.MaxLanes; i++ {
		l := s.acceptedLane(seamLower, i)
		further = append(further, l)
		s.until("a message that is acknowledged leaves", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.bytes > 0 })
	}
	if n := s.shakes(); n != wire.MaxLanes-1 {
		t.Errorf("%d handshakes before anything is acknowledged", n)
	}
	for i, l := range further {
		l.mu.Lock()
		l.acked = l.bytes
		l.mu.Unlock()
		s.until("the lane is ready", func() bool { return s.ready(seamLower, i+1) })
	}
	s.until("no handshake is left", func() bool { return s.shakes() == 0 })
	for i, l := range further {
		l.end(errFake)
		s.acceptedLane(seamLower, i+1)
		if !s.ready(seamLower, i+1) {
			t.Errorf("lane %d is not ready on its next link", i+1)
		}
	}
	s.until("no handshake is left of the next links", func() bool { return s.shakes() == 0 })
}

// TestHandshakeUnanswered: a kernel with its pings switched off is ready when it was waited for.
func TestHandshakeUnanswered(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.accepted(seamLower)
	if err := l.bring(t, frameOf(9, k.Addr().Port(), 1, "x")); err != nil {
		t.Fatal(err)
	}
	if n := s.shakes(); n != 1 {
		t.Errorf("%d handshakes while the answer is waited for", n)
	}
	s.until("the lane is ready", func() bool { return s.ready(seamLower, 0) })
	s.until("no handshake is left", func() bool { return s.shakes() == 0 })
}

// TestHandshakePaused: a link that a full receiver keeps unread, and one that waits for it, hold
// what a kernel has forgotten. However many there are, none is closed to make room.
func TestHandshakePaused(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) { c.Conn.ProbeTimeout = time.Minute })
	next := *s.a.deps.Conf()
	next.Limits.MaxHandshakes = 8
	s.a.deps.SetConf(&next)
	const held = 9000
	e, now := s.h.Lock()
	e.Hold(now, map[uint16]uint32{held: 7}, now+time.Minute)
	s.h.Unlock()
	other := netip.MustParseAddr("203.0.113.0") // another source
	var links []*fakeLink
	paused := func(l *fakeLink, f *transport.Frame) {
		t.Helper()
		if err := l.bring(t, f); !errors.Is(err, transport.ErrPause) {
			t.Fatalf("link %d: %v", len(links), err)
		}
		links = append(links, l)
	}
	paused(s.acceptedLane(seamLower, 0), frameOf(9, held, 1, "x"))
	for i := 1; i < wire.MaxLanes; i++ {
		paused(s.acceptedLane(seamLower, i), kernelShake(wire.MaxLanes)[1])
	}
	paused(s.acceptedLane(other, 0), frameOf(9, held, 1, "x"))
	for i, l := range links {
		if _, _, c, _ := l.state(); len(c) != 0 {
			t.Errorf("link %d was closed %v", i, c)
		}
	}
	if n, refused := s.shakes(), s.a.peers.Refused(); n != 0 || refused != 0 {
		t.Errorf("%d handshakes are left, %d links were refused", n, refused)
	}
	if st := s.info(seamLower).State; st != conn.Up {
		t.Errorf("lane 0 is %v", st)
	}
}
