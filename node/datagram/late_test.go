package datagram

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// patient is a seam whose timers ask TCP for nothing while a test runs.
func patient(t *testing.T) *seam {
	return newSeam(t, func(c *rds.Config) { c.Conn.AckPoll, c.Conn.ProbeTimeout = time.Hour, time.Hour })
}

// kernelAnswer is the answer of a kernel without lanes to a ping.
func kernelAnswer(seq uint64) *transport.Frame {
	x := wire.Handshake{NPaths: 8}
	h := wire.Header{Seq: seq, DPort: wire.PortProbe, Ext: x.Encode()}
	return &transport.Frame{Raw: h.Append(nil)}
}

// TestAnswerAcknowledges: TCP is asked as soon as a kernel's answer has come, and by no timer, for what the
// answer has acknowledged: datagrams leave at once.
func TestAnswerAcknowledges(t *testing.T) {
	s := patient(t)
	k := s.bind(rds.SocketOptions{})
	s.send(k, seamHigher, "first")
	l := s.dialled()
	s.pinged(l)
	if err := l.bring(t, kernelAnswer(1)); err != nil {
		t.Fatal(err)
	}
	s.left(l, 1)
}

// TestLateAnswer: an answer that was sent before the ping of its link had arrived is to a ping of another
// link, or of another life of this node. Nothing leaves behind it before TCP has acknowledged the ping:
// the kernel expects the numbers of that life, and would drop as old what is sent again when
// the link is lost.
func TestLateAnswer(t *testing.T) {
	s := patient(t)
	k := s.bind(rds.SocketOptions{})
	s.send(k, seamHigher, "first")
	l := s.dialled()
	s.pinged(l)
	l.mu.Lock()
	l.late = true
	l.mu.Unlock()
	if err := l.bring(t, kernelAnswer(900)); err != nil {
		t.Fatal(err)
	}
	if s.ready(seamHigher, 0) {
		t.Error("the lane is ready by a late answer")
	}
	l.end(errFake)
	l = s.dialled()
	s.pinged(l)
	if err := l.bring(t, kernelAnswer(901)); err != nil {
		t.Fatal(err)
	}
	s.left(l, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.frames {
		if h.Flags&wire.FlagRetransmitted != 0 {
			t.Errorf("sent again, to who does not know our numbers: %+v", h)
		}
	}
}

func (s *seam) pinged(l *fakeLink) {
	s.t.Helper()
	await.Until(s.t, 10*time.Second, "the ping leaves", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.pinged > 0 })
}

func (s *seam) left(l *fakeLink, n int) {
	s.t.Helper()
	await.Until(s.t, 10*time.Second, "the datagram leaves", func() bool { _, _, _, data := l.state(); return data == n })
}
