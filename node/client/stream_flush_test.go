package client

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rds"
)

// lateEngine lets the next one that wants the lock come late.
type lateEngine struct {
	*testEngine
	late atomic.Bool
}

func (l *lateEngine) Lock() (*rds.Engine, time.Duration) {
	if l.late.Swap(false) {
		time.Sleep(50 * time.Millisecond)
	}
	return l.testEngine.Lock()
}

// TestFlushGivenUpBeforeItBegins: a flush whose time is over when the engine is asked leaves nothing there
// for as long as a datagram hangs.
func TestFlushGivenUpBeforeItBegins(t *testing.T) {
	eng := &lateEngine{testEngine: newTestEngine(keptAddr, rds.DefaultConfig())}
	s, _, _ := keptSocketOf(t, eng, func(*rdsdv1.Bind) {})
	s.send(crossing(1, false, peerEndpoint(1)))
	eng.late.Store(true)
	s.flush(clienttest.FlushOf(7, time.Millisecond).GetFlush())
	await.Until(t, 10*time.Second, "The flush is answered.", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.flushes) == 0
	})
	_, now := eng.Lock()
	n, _, _ := s.sock.Cancel(now, netip.AddrPortFrom(peerEndpoint(1).addr, 9000))
	left := s.sock.Flushed()
	eng.Unlock()
	if n != 1 || len(left) > 0 {
		t.Errorf("%d were cancelled, and the engine answers %v, which was given up", n, left)
	}
}

// TestFlushAnsweredAtTheLastMoment: a flush with nothing to wait for succeeds, however short its time is.
func TestFlushAnsweredAtTheLastMoment(t *testing.T) {
	s, _, _ := keptSocketOf(t, newTestEngine(keptAddr, rds.DefaultConfig()), func(*rdsdv1.Bind) {})
	s.flush(clienttest.FlushOf(7, time.Hour).GetFlush())
	s.flushTimeout(s.flushN) // before its answer is taken
	s.mu.Lock()
	late := len(s.out)
	s.mu.Unlock()
	news := s.takeNews()
	if late > 0 || len(news) != 1 {
		t.Fatalf("%d answers at the end of its time, %d after it; want one, after it", late, len(news))
	}
	if r := news[0].(*rdsdv1.ServerMessage).GetFlushResult(); r.GetId() != 7 || r.GetErrno() != 0 {
		t.Errorf("the answer is %v", r)
	}
}

// TestNoAnswersBehindTheEnd: what a client sends and asks while the daemon ends its socket is not answered with a
// socket that is closed, which he takes for his own Close: the end of the stream is the answer.
func TestNoAnswersBehindTheEnd(t *testing.T) {
	cfg := rds.DefaultConfig()
	cfg.MaxUndecided = 1
	s, _, _ := keptSocketOf(t, newTestEngine(keptAddr, cfg), func(*rdsdv1.Bind) {})
	to := netip.AddrPortFrom(peerEndpoint(1).addr, 9000)
	s.send(crossing(1, true, peerEndpoint(1)))
	if s.send(crossing(1, true, peerEndpoint(1))); len(s.out) != 1 {
		t.Fatalf("%d batches are answered, want one, and one that waits", len(s.out))
	}
	s.out = nil // written
	s.close()
	s.send(crossing(2, true, peerEndpoint(1)))
	s.send(crossing(3, false, peerEndpoint(1)))
	s.flush(clienttest.FlushOf(4, time.Second).GetFlush())
	s.cancel(clienttest.CancelOf(5, to).GetCancel())
	q := &rdsdv1.CongestedQuery{}
	q.SetId(6)
	q.SetDestination(clienttest.EndpointMsg(to))
	s.congested(q)
	p := &rdsdv1.Peek{}
	p.SetId(7)
	s.peek(p)
	replies := s.takeNews()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range append(replies, s.out...) {
		t.Errorf("%T: %+v", m, m)
	}
}
