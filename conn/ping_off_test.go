package conn

import (
	"strings"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// exchange carries what two connections have to tell each other on lane 0, until that is nothing.
func exchange(t *testing.T, ends ...*world) {
	t.Helper()
	for busy := true; busy; {
		busy = false
		for i, w := range ends {
			from, to, peer := w.c.lanes[0], ends[1-i].c.lanes[0], ends[1-i]
			b := transport.GetBatch()
			if from.Fill(w.now, b) {
				busy = true
				for _, f := range framesOf(t, b) {
					if err := to.Receive(peer.now, to.attempt, &f); err != nil {
						t.Fatalf("%v: %v", to, err)
					}
				}
				to.ReceivedAll(peer.now, to.attempt)
				from.Wrote(w.now)
			}
			b.Put()
		}
	}
}

// An rdsd that answers no pings answers another rdsd's handshake: datagrams go both ways, and only
// plain pings have no answer.
func TestPingOffBetweenRdsds(t *testing.T) {
	one := func(c *Config) { c.Lanes = 1 }
	a := newWorld(t, "10.0.0.1", "10.0.0.2", one)
	b := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { one(c); c.Ping = false })
	a.send(5000, 4000, 10, true)
	b.c.Accept(b.now, 40000)
	a.c.lanes[0].Connected(a.now, a.c.lanes[0].attempt)
	exchange(t, a, b)
	for _, w := range []*world{a, b} {
		if p := w.c.lanes[0]; !p.ready || w.c.kind != KindRdsd {
			t.Errorf("%v: ready %v, its peer is %v", p, p.ready, w.c.kind)
		}
	}
	b.send(4000, 5000, 20, true)
	a.send(5001, 0, 0, true)
	exchange(t, a, b)
	if out := b.take(); strings.Count(out, "deliver 5000>4000 len=10") != 1 {
		t.Errorf("the one without pings has:\n%s", out)
	}
	if out := a.take(); strings.Count(out, "deliver 4000>5000 len=20") != 1 || strings.Contains(out, "deliver 0>") {
		t.Errorf("the other has:\n%s", out)
	}
	if b.ctr.RecvDropNoSock != 1 {
		t.Errorf("%d pings were dropped, want 1", b.ctr.RecvDropNoSock)
	}
}
