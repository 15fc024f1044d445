package datagram

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// stuckLog is a log whose reader has stopped.
type stuckLog struct {
	slog.Handler
	open  chan struct{}
	lines *atomic.Int64
}

func (l stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (l stuckLog) Handle(context.Context, slog.Record) error {
	<-l.open
	l.lines.Add(1)
	return nil
}

// TestStuckLog: links come up and datagrams pass although nobody reads the log;
// the lines are there when it is read again.
func TestStuckLog(t *testing.T) {
	port := freeTCPPort(t)
	l := stuckLog{slog.DiscardHandler, make(chan struct{}), new(atomic.Int64)}
	a, b := benchNode(t, port, "127.0.0.57"), benchNode(t, port, "127.0.0.58")
	for _, n := range []*Host{a, b} {
		for _, h := range n.list {
			h.log = slog.New(l)
		}
	}
	x, y := a.list[0], b.list[0]
	from, to := openFlow(t, x, 0), openFlow(t, y, 4000)
	for i := range uint64(20) {
		from.send(t, to, i)
		if _, n := to.receive(t); n != i {
			t.Fatalf("received %d instead of %d", n, i)
		}
		if i%5 == 4 {
			x.all.DropLane(netip.Addr{}, y.addr, -1)
		}
	}
	if n := l.lines.Load(); n != 0 {
		t.Errorf("%d lines were written to a log that is stuck", n)
	}
	close(l.open)
	done := make(chan struct{})
	go func() { a.Close(); b.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("close does not end")
	}
	if n := l.lines.Load(); n < 8 {
		t.Errorf("%d lines in the end; there were links up and lost four times", n)
	}
}
