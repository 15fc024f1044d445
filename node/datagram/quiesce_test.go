package datagram

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
)

// TestSeamLeave: before the end kernels' links are ended and nothing is dialled;
// links of rdsds stay.
func TestSeamLeave(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	peer := s.accepted(seamLower)
	if err := peer.bring(t, hello(1)...); err != nil {
		t.Fatal(err)
	}
	if n := s.h.unread(); n != 1 {
		t.Errorf("%d unread datagrams", n)
	}
	dials := s.p.dialled()
	s.a.Quiesce()
	if _, _, c, _ := l.state(); len(c) == 0 || !c[0] {
		t.Errorf("the kernel's link was closed %v", c)
	}
	if _, _, c, _ := peer.state(); len(c) != 0 {
		t.Errorf("the rdsd's link was closed %v", c)
	}
	if n := s.h.endForeign(); n != 0 {
		t.Errorf("%d links of kernels are left", n)
	}
	if _, err := s.h.connectNow(context.Background(), conn.Action{Lane: s.lane(seamHigher)}); !errors.Is(err, errLeaving) {
		t.Errorf("dialled on the way out: %v", err)
	}
	if s.p.dialled() != dials {
		t.Error("dialled on the way out")
	}
}

// TestSeamLeaveLate: a kernel's link that is read to its end a moment later is waited for.
func TestSeamLeaveLate(t *testing.T) {
	s := newSeam(t, nil)
	l := s.kernel(s.bind(rds.SocketOptions{}))
	l.mu.Lock()
	l.mute = true
	l.mu.Unlock()
	go func() {
		s.until("the link is closed", func() bool { _, _, c, _ := l.state(); return len(c) > 0 })
		time.Sleep(50 * time.Millisecond)
		l.end(net.ErrClosed)
	}()
	s.a.Quiesce()
	if n := s.h.endForeign(); n != 0 {
		t.Errorf("%d links of kernels are left", n)
	}
}

// TestSeamLeaveParked: a kernel's link that waits behind another one for its turn is shut when it
// has it, and read to its end as well.
func TestSeamLeaveParked(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	first := s.accepted(seamLower)
	first.mute = true
	if err := first.bring(t, frameOf(9, k.Addr().Port(), 1, "x")); err != nil {
		t.Fatal(err)
	}
	second := s.accepted(seamLower)
	s.h.leave()
	if n := s.h.endForeign(); n != 2 {
		t.Errorf("%d links of kernels, want one and the one behind it", n)
	}
	first.end(net.ErrClosed)
	s.until("the second has its turn", func() bool { n, _, _, _ := second.state(); return n > 0 })
	second.mute = true
	if n := s.h.endForeign(); n != 1 {
		t.Errorf("%d links of kernels, want the second", n)
	}
	if _, _, c, _ := second.state(); !slices.Equal(c, []bool{true}) {
		t.Errorf("the second was closed %v", c)
	}
	if err := second.bring(t, frameOf(9, k.Addr().Port(), 2, "y")); err != nil {
		t.Fatal(err)
	}
	if n := s.h.unread(); n != 2 {
		t.Errorf("%d datagrams, want those of both", n)
	}
	second.end(net.ErrClosed)
	if n := s.h.endForeign(); n != 0 {
		t.Errorf("%d links of kernels are left", n)
	}
}

// TestSeamLeaveStuck: the link of a kernel that a receiver's want of room keeps unread at the end
// gets no room any more, and nobody waits for its end.
func TestSeamLeaveStuck(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) { c.HardFactor = 0 })
	k := s.bind(rds.SocketOptions{RcvBufBytes: 4096})
	l := s.kernel(k)
	big := string(make([]byte, 512<<10))
	err := error(nil)
	for seq := uint64(2); err == nil; seq++ {
		err = l.bring(t, frameOf(9, k.Addr().Port(), seq, big))
	}
	l.mu.Lock()
	l.mute = true
	l.mu.Unlock()
	s.a.Quiesce()
	e, now := s.h.Lock()
	k.Close(now)
	s.h.Unlock()
	if _, n, _, _ := l.state(); n != 0 || e.Held() != 1 {
		t.Errorf("the link goes on %d times; %d ports are held", n, e.Held())
	}
	begun, stopped := time.Now(), make(chan struct{})
	go func() { s.h.stop(); close(stopped) }()
	s.until("the link is aborted", func() bool { _, _, c, _ := l.state(); return slices.Contains(c, false) })
	if d := time.Since(begun); d > stopPatience/2 {
		t.Errorf("it is waited for, %v", d)
	}
	l.end(net.ErrClosed)
	<-stopped
}
