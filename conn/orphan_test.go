package conn

import (
	"strings"
	"testing"
	"time"
)

// What a closed socket has sent to a peer that shows signs of life and acknowledges
// nothing is given up; another socket's stays.
func TestOrphans(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7",
		"send 5000>4000 10", "send 5000>4001 10"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	p := w.c.lanes[0]
	if p.unacked.n != 3 { // with the handshake
		t.Fatalf("%d are unacknowledged, want 3", p.unacked.n)
	}
	w.c.Cancel(w.now, w.sender(4000), WhyClosed)
	w.take()
	for range 4 {
		for range 9 {
			w.advance(w.c.cfg.DeadAfter / 20)
			if err := w.recvOne(p, "ack csum ack=0"); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		w.advance(time.Millisecond)
	}
	if out := w.take(); p.state != Up || strings.Count(out, "unknown") != 1 || w.sender(4000).Messages() != 0 || w.sender(4001).Messages() != 1 {
		t.Errorf("state %v, %d and %d messages are left, want 0 and 1:\n%s", p.state, w.sender(4000).Messages(), w.sender(4001).Messages(), out)
	}
}
