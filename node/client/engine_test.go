package client

import (
	"math/rand"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// testEngine is an engine with a lock and no links: its own address is all it
// can reach.
type testEngine struct {
	mu    sync.Mutex
	e     *rds.Engine
	begun time.Time
	timer *time.Timer
}

func newTestEngine(a netip.Addr, cfg rds.Config) *testEngine {
	return &testEngine{e: rds.NewEngine(&cfg, a, rand.New(rand.NewSource(1))), begun: time.Now()}
}

func (t *testEngine) Lock() (*rds.Engine, time.Duration) {
	t.mu.Lock()
	return t.e, t.e.Begin(time.Since(t.begun))
}

func (t *testEngine) Unlock() {
	var o rds.Orders // dials go nowhere
	at, _ := t.e.End()
	t.e.Take(&o)
	if at < time.Hour {
		if t.timer != nil {
			t.timer.Stop()
		}
		t.timer = time.AfterFunc(at-time.Since(t.begun), func() {
			e, now := t.Lock()
			e.Tick(now)
			t.Unlock()
		})
	}
	t.mu.Unlock()
	for _, s := range o.Ready {
		s.Options().Data.(datagram.Waker).News()
	}
}
