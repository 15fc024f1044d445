package datagram

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// deny takes all rules back, as a reload does before DropRefused.
func (s *seam) deny() {
	next := *s.a.deps.Conf()
	next.Peers = []config.PeerRule{}
	s.a.deps.SetConf(&next)
}

// parked gives a peer a link that is read to its end without coming to it, and two more that
// wait for that: the second of an rdsd makes the first stale, a kernel's wait both.
func (s *seam) parked(kernel bool) (first *fakeLink, waiting []*fakeLink) {
	s.t.Helper()
	first = s.accepted(seamLower)
	first.mu.Lock()
	first.mute = true
	first.mu.Unlock()
	frames := hello(1)
	if kernel {
		frames = kernelShake(1)
	}
	if err := first.bring(s.t, frames...); err != nil {
		s.t.Fatal(err)
	}
	waiting = append(waiting, s.accepted(seamLower))
	if kernel {
		waiting = append(waiting, s.accepted(seamLower))
	}
	if st := s.info(seamLower).State; st != conn.Disconnecting {
		s.t.Fatalf("the lane is %v", st)
	}
	return first, waiting
}

func (s *seam) ended(waiting []*fakeLink) {
	s.t.Helper()
	for i, l := range waiting {
		if n, _, c, _ := l.state(); n != 0 || len(c) != 1 || c[0] {
			s.t.Errorf("link %d that waits was started %d times and closed %v", i, n, c)
		}
	}
	if n := s.a.peers.Budgets()[0].Used; n != 0 {
		s.t.Errorf("%d handshakes are left", n)
	}
}

// TestDropParked: a link that waits for its predecessor's end ends with the rule that let it in.
func TestDropParked(t *testing.T) {
	for _, kernel := range []bool{false, true} {
		s := newSeam(t, nil)
		first, waiting := s.parked(kernel)
		s.deny()
		if n := s.a.DropRefused(); n != len(waiting) {
			t.Errorf("kernel %v: %d links were dropped, want %d", kernel, n, len(waiting))
		}
		s.ended(waiting)
		first.end(io.EOF)
		if s.info(seamLower).State == conn.Up {
			t.Errorf("kernel %v: a peer that is not allowed has a link", kernel)
		}
	}
}

// TestDropParkedUser: of two links at one address the one that waits is a user's who may not be a
// peer. It ends, and the other does not.
func TestDropParkedUser(t *testing.T) {
	s := newSeam(t, nil)
	first, waiting := s.parked(true)
	l := s.acceptedLane(seamLower, 8)
	s.a.machine.From = func(_, remote netip.AddrPort) (int64, error) {
		if remote == l.remote {
			return 7, rdserr.ErrPerm
		}
		return 0, nil
	}
	if n := s.a.DropRefused(); n != 1 {
		t.Errorf("%d links were dropped, want 1", n)
	}
	for i, l := range waiting {
		if _, _, c, _ := l.state(); len(c) != 0 {
			t.Errorf("link %d that waits was closed %v", i, c)
		}
	}
	if n, _, c, _ := l.state(); n != 0 || len(c) != 1 || c[0] {
		t.Errorf("a stranger's link that waits was started %d times and closed %v", n, c)
	}
	first.end(io.EOF)
}

// TestDropUnidentified: a peer that has not said yet what it is, on a link that a kernel was allowed
// on, is not let in as one by a rule that is over. Where no kernel was allowed the link stays: it can
// be an rdsd's alone.
func TestDropUnidentified(t *testing.T) {
	rules := func(s *seam, kernel bool) {
		next := *s.a.deps.Conf()
		next.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/29")}, Kernel: kernel}}
		s.a.deps.SetConf(&next)
	}
	s := newSeam(t, func(c *rds.Config) { c.Conn.ProbeTimeout = time.Hour })
	l := s.accepted(seamLower)
	rules(s, false)
	if n := s.a.DropRefused(); n != 1 {
		t.Errorf("%d links were dropped, want 1", n)
	}
	if err := l.bring(t, kernelShake(1)...); err != nil {
		t.Log(err)
	}
	if st := s.info(seamLower).State; st == conn.Up {
		t.Error("a kernel has a link, and no rule allows it any more")
	}
	s.until("the link has ended", func() bool {
		_, _, c, _ := l.state()
		return len(c) > 0 && s.info(seamLower).State != conn.Disconnecting
	})

	s.accepted(seamLower)
	if n := s.a.DropRefused(); n != 0 {
		t.Errorf("%d links were dropped on which no kernel was allowed", n)
	}
}

// TestDropUnderWay: a link that is being made or judged while the rules change is of those that
// are not allowed any more.
func TestDropUnderWay(t *testing.T) {
	s := newSeam(t, nil)
	change := func() {
		s.deny()
		if n := s.a.DropRefused(); n != 0 {
			t.Errorf("%d links were dropped before there is one", n)
		}
	}
	conf := s.a.deps.Conf()
	s.p.mu.Lock()
	s.p.during = change
	s.p.mu.Unlock()
	s.send(s.bind(rds.SocketOptions{}), seamHigher, "a")
	l := <-s.p.news
	s.until("the link that was dialled is closed", func() bool { n, _, c, _ := l.state(); return n == 0 && len(c) == 1 && !c[0] })
	s.until("the lane says why", func() bool { return errors.Is(s.info(seamHigher).LastErr, errNotAllowed) })
	s.a.deps.SetConf(conf)
	s.a.machine.From = func(_, _ netip.AddrPort) (int64, error) {
		change()
		return 0, nil
	}
	l = s.accepted(seamLower)
	if n, _, c, _ := l.state(); n != 0 || len(c) != 1 || c[0] {
		t.Errorf("a link that was judged meanwhile: started %d times, closed %v", n, c)
	}
	if n := s.a.peers.Budgets()[0].Used; n != 0 {
		t.Errorf("%d handshakes are left", n)
	}
}
