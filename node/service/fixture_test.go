package service

import (
	"log/slog"
	"net"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/node/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what the services stand on, and the services. There is nothing else of a
// node in it, and nobody listens.
type world struct {
	real bool              // there are engines
	snap datagram.Snapshot // what datagrams do where there are none

	deps     *base.Deps
	hosts    *datagram.Host
	users    *access.Clients
	clients  *client.Front
	services *Front
	logs     *clienttest.Log
}

// newWorld makes one as w has it.
func newWorld(t *testing.T, cfg *config.Config, w world) *world {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	w.logs = &clienttest.Log{}
	d := base.New(cfg, slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	w.deps = d
	d.Guard = &guard.Guard{Log: d.Log}
	w.users = access.NewClients(cfg.Limits.MaxClients, cfg.Limits.MaxClientsPerUID, d.Memory, func(id config.Identity, err error) {
		d.Count.ClientsRefused.Add(1)
		d.Log.Warn("client refused", "uid", id.UID, "error", err)
	})
	limiter := access.NewLimiter(cfg.API.CallsPerSec, cfg.API.CallsBurst)
	read := func(s *datagram.Snapshot) { *s = w.snap }
	room := client.Deps{Deps: d, Clients: w.users, Limiter: limiter}
	if w.real {
		w.hosts = datagram.New(d, peers.New(d))
		d.Guard.Locks = w.hosts.TakeLocks
		read, room.Engine, room.Collect = w.hosts.Read, w.hosts.Engine, w.hosts.Collect
	}
	w.clients = client.New(room)
	w.services = New(Deps{Deps: d, Read: read, Host: w.hosts, Clients: w.clients, Users: w.users, Limiter: limiter,
		Volumes: func() *volume.Host { return nil }, State: func() string { return "serving" }, HTTPAddr: func() net.Addr { return nil },
		Errors: func() ([]LoggedError, uint64) { return nil, 0 }})
	return &w
}

// startWorld makes one with engines that run until the test ends.
func startWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	cfg := clienttest.Config(t)
	change(cfg)
	w := newWorld(t, cfg, world{real: true})
	if err := w.hosts.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.hosts.Quiesce()
		close(w.deps.Stopping)
		w.hosts.Close()
	})
	return w
}

// dialSocket connects to the Unix socket of the API.
func dialSocket(t *testing.T, cfg *config.Config) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix://"+cfg.API.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}
