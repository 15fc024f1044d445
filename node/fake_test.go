package node

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/rdsd/rdsd/internal/counters"
)

// fakeCore records what the lifecycle does with it.
type fakeCore struct {
	mu       sync.Mutex
	calls    []string
	startErr error
	draining func(context.Context)
	stats    stats
}

func (f *fakeCore) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, s)
}

func (f *fakeCore) start() error { f.note("start"); return f.startErr }
func (f *fakeCore) close()       { f.note("close") }
func (f *fakeCore) alive()       {}
func (f *fakeCore) drain(ctx context.Context) {
	f.note("drain")
	if f.draining != nil {
		f.draining(ctx)
	}
}
func (f *fakeCore) extra() []counters.Desc { return []counters.Desc{{Name: "things", Help: "Things."}} }
func (f *fakeCore) read(s *stats) {
	*s = f.stats
	if s.kernel == nil {
		s.kernel = counters.KernelTable.Read(nil, &counters.Kernel{})
	}
	s.extra = []uint64{3}
}

func newFakeNode(t *testing.T, cfg *Config, c *fakeCore) (*Node, *syncBuffer) {
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
