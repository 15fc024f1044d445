package node

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig is a node on a loopback address of its own, with everything else
// in a temporary directory.
func testConfig(t *testing.T) *config.Config {
	c := clienttest.Config(t)
	c.HTTP.Listen = "127.0.0.1:0"
	return c
}

// startNode runs a node and stops it when the test ends.
func startNode(t *testing.T, n *Node) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	select {
	case <-n.Ready():
	case <-time.After(10 * time.Second):
		t.Fatal("not ready after 10 s")
	}
	return stop
}

// dial connects to a node's Unix socket.
func dial(t *testing.T, cfg *config.Config, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix://"+cfg.API.Socket, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
