package nbd

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/reactor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(bothWays{m}) }

// testReactor serves the connections of the tests; nil: goroutines do.
var testReactor *reactor.Reactor

// bothWays runs the tests with goroutines and then on a reactor.
type bothWays struct{ m *testing.M }

func (b bothWays) Run() int {
	flag.Parse()
	once := flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.bench").Value.String() != "" || flag.Lookup("test.list").Value.String() != ""
	if code := b.m.Run(); code != 0 || once {
		return code
	}
	var err error
	if testReactor, err = reactor.New(reactor.Options{CPU: -1, Name: "test"}); err != nil {
		panic(err)
	}
	defer testReactor.Close()
	if testing.Verbose() {
		fmt.Println("on a reactor:")
	}
	return b.m.Run()
}

// serve runs a server with the given exports on a Unix socket until the test ends.
func serve(t testing.TB, o Options, exports ...Export) (s *Server, socket string) {
	t.Helper()
	if o.Reactor == nil {
		o.Reactor = testReactor
	}
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
