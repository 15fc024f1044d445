package clienttest

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node/config"
)

// Config is a daemon on loopback, with everything else in a temporary directory.
func Config(t testing.TB) *config.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdsd") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := config.Default()
	c.RDS.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if c.RDS.Port, err = freeport.On(); err != nil {
		t.Fatal(err)
	}
	c.API.Socket = filepath.Join(dir, "s")
	c.API.DrainTimeout = config.Duration{Duration: 2 * time.Second}
	return c
}

// Log keeps what is written to it, from whatever goroutine.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (s *Log) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// String is all of it.
func (s *Log) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
