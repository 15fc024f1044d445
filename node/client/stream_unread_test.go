package client

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

// TestUnreadIsCharged: replies that wait for a client which does not read, and flushes that are not answered, take
// no more than is charged to its user, but for what the socket's own price has; when they are written, or the
// socket is closed, nothing of that is left.
func TestUnreadIsCharged(t *testing.T) {
	ask := func(dst *rdsdv1.Endpoint) *rdsdv1.ClientMessage {
		q := &rdsdv1.CongestedQuery{}
		q.SetDestination(dst)
		m := &rdsdv1.ClientMessage{}
		m.SetCongested(q)
		return m
	}
	for what, send := range map[string]func(s *sockStream){
		"results":     func(s *sockStream) { s.send(crossing(1, false, peerEndpoint(1))) },
		"an error":    func(s *sockStream) { s.send(crossing(1, false, rawEndpoint{})) },
		"a refusal":   func(s *sockStream) { s.send(crossing(0, false)) },
		"many errors": func(s *sockStream) { s.send(crossing(maxBatchErrors, false, make([]rawEndpoint, maxBatchErrors)...)) },
		"cancels":     func(s *sockStream) { _ = s.control(clienttest.CancelOf(1, clienttest.Nobody)) },
		"questions":   func(s *sockStream) { _ = s.control(ask(clienttest.EndpointMsg(clienttest.Nobody))) },
		"no question": func(s *sockStream) { _ = s.control(ask(nil)) },
		"flushes":     func(s *sockStream) { _ = s.control(clienttest.FlushOf(1, time.Hour)) },
	} {
		t.Run(what, func(t *testing.T) {
			s, _, n := keptSocket(t, func(*rdsdv1.Bind) {})
			heap := func() int64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			s.send(crossing(1, false, peerEndpoint(1))) // what the flushes wait for
			send(s)
			calls := func() int64 { return n.deps.Memory.Kinds()[quota.Calls].Used }
			s.wmu.Lock() // somebody is in the middle of a message, for as long as the client likes
			before, charged := heap(), calls()
			k := 0
			for ; k < 3*maxReplies && len(s.out) <= maxReplies && s.heavyB <= maxHeavyBytes; k++ {
				send(s)
			}
			took, paid := heap()-before, calls()-charged
			s.wmu.Unlock()
			t.Logf("%d take %d bytes, of which %d are charged", k, took, paid)
			if took > paid+plainSocketBytes {
				t.Errorf("%d take %d bytes, and %d are charged", k, took, paid)
			}
			flushes := max(int64(len(s.flushes))-freeFlushes, 0) * flushBytes
			if err := s.write(false); err != nil || calls() != flushes {
				t.Errorf("when the replies are written %d bytes are charged, want %d; %v", calls(), flushes, err)
			}
			s.eng.Lock()
			var all []uint64
			for f := range s.flushes {
				all = append(all, f)
			}
			s.flushed(all)
			s.eng.Unlock()
			if got := calls(); got != 0 {
				t.Errorf("when the flushes are answered %d bytes are charged", got)
			}
			send(s)
			if s.close(); calls() != 0 {
				t.Errorf("when the socket is closed %d bytes are charged", calls())
			}
		})
	}
}

// TestFlushWithoutMemory: who has no memory for another flush is told so, and those before it stay.
func TestFlushWithoutMemory(t *testing.T) {
	s, _, n := keptSocket(t, func(*rdsdv1.Bind) {})
	s.send(crossing(1, false, peerEndpoint(1)))
	spend(t, n)
	for id := range uint64(freeFlushes + 1) {
		_ = s.control(clienttest.FlushOf(id+1, time.Hour))
	}
	last, ok := s.out[len(s.out)-1].(*rdsdv1.ServerMessage)
	if !ok || last.GetFlushResult().GetId() != freeFlushes+1 || syscall.Errno(last.GetFlushResult().GetErrno()) != syscall.ENOMEM || len(s.flushes) != freeFlushes {
		t.Errorf("one more is answered by %v, and %d wait", last, len(s.flushes))
	}
}
