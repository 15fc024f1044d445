package nbd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/blk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server with the given exports on a Unix socket until the test ends.
func serve(t testing.TB, o Options, exports ...Export) (s *Server, socket string) {
	t.Helper()
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range exports {
		if err := s.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "rdsd") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "nbd")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		os.RemoveAll(dir)
	})
	return s, socket
}

func memory(t testing.TB, size uint64) *blk.Mem {
	t.Helper()
	m, err := blk.NewMem(blk.MemOptions{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}
