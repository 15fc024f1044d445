package node

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// fakeCore records what the lifecycle does with it.
type fakeCore struct {
	mu       sync.Mutex
	calls    []string
	startErr error
	draining func(context.Context)
	snap     datagram.Snapshot
	engines  map[netip.Addr]*testEngine
}

func (f *fakeCore) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, s)
}

func (f *fakeCore) Start() error { f.note("start"); return f.startErr }
func (f *fakeCore) Close()       { f.note("close") }
func (f *fakeCore) Alive()       {}
func (f *fakeCore) Drain(ctx context.Context) {
	f.note("drain")
	if f.draining != nil {
		f.draining(ctx)
	}
}
func (f *fakeCore) Read(s *datagram.Snapshot) { *s = f.snap }

func (f *fakeCore) Engine(a netip.Addr) datagram.Engine {
	if e := f.engines[a]; e != nil {
		return e
	}
	return nil
}

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
	return t.e, time.Since(t.begun)
}

func (t *testEngine) Unlock() {
	t.e.Take(nil) // dials go nowhere
	ready := t.e.Ready(nil)
	if at, ok := t.e.Next(); ok && at < time.Hour {
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
	for _, s := range ready {
		s.Options().Data.(datagram.Waker).News()
	}
}

func newFakeNode(t *testing.T, cfg *config.Config, c *fakeCore) (*Node, *syncBuffer) {
	t.Helper()
	var logs syncBuffer
	n, err := newNode(cfg, slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	n.core = c
	n.assemble()
	return n, &logs
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	port, err := freeport.On()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
