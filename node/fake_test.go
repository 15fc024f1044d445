package node

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
)

// fakeCore records what the lifecycle does with it.
type fakeCore struct {
	mu       sync.Mutex
	calls    []string
	startErr error
	starting func()
	draining func(context.Context)
}

func (f *fakeCore) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, s)
}

func (f *fakeCore) Start() error {
	f.note("start")
	if f.starting != nil {
		f.starting()
	}
	return f.startErr
}

func (f *fakeCore) Close() { f.note("close") }

func (f *fakeCore) Alive() {}

func (f *fakeCore) Drain(ctx context.Context) {
	f.note("drain")
	if f.draining != nil {
		f.draining(ctx)
	}
}

func (f *fakeCore) Read(*datagram.Snapshot) {}

func (f *fakeCore) Engine(netip.Addr) datagram.Engine { return nil }

type syncBuffer = clienttest.Log

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

func freePort(t *testing.T) uint16 {
	t.Helper()
	port, err := freeport.On()
	if err != nil {
		t.Fatal(err)
	}
	return port
}
