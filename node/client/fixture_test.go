package client

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what a daemon is to clients on its machine that use its control socket:
// engines, this room, and who looks after pages. There is nothing else of a node in it.
type world struct {
	deps    *base.Deps
	hosts   *datagram.Host
	users   *access.Clients
	clients *Front
}

// newWorld makes one that does not run. hosts may be nil: then engine says what engines
// there are.
func newWorld(t *testing.T, cfg *config.Config, engine func(netip.Addr) datagram.Engine) *world {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	d := base.New(cfg, nil)
	w := &world{deps: d, users: access.NewClients(cfg.Limits.MaxClients, cfg.Limits.MaxClientsPerUID, d.Memory, nil)}
	d.Guard = &guard.Guard{Log: d.Log}
	room := Deps{Deps: d, Clients: w.users, Limiter: access.NewLimiter(cfg.API.CallsPerSec, cfg.API.CallsBurst), Engine: engine}
	if engine == nil {
		w.hosts = datagram.New(d, peers.New(d))
		d.Guard.Locks = w.hosts.TakeLocks
		room.Engine, room.Collect = w.hosts.Engine, w.hosts.Collect
	}
	w.clients = New(room)
	return w
}

func startClients(t *testing.T) (*world, *config.Config) {
	t.Helper()
	return startClientsWith(t, func(*config.Config) {})
}

// startClientsWith starts one with a changed configuration, until the test ends.
func startClientsWith(t *testing.T, change func(*config.Config)) (*world, *config.Config) {
	t.Helper()
	cfg := clienttest.Config(t)
	change(cfg)
	w := newWorld(t, cfg, nil)
	w.start(t)
	return w, cfg
}

// start serves clients until stop is called or the test ends.
func (w *world) start(t *testing.T) (stop func()) {
	t.Helper()
	d := w.deps
	if _, err := d.FDs.Open(d.Config, d.Count); err != nil {
		t.Fatal(err)
	}
	refuse := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { unixsock.RefuseRights(int(fd)) })
	}}
	l, err := refuse.Listen(t.Context(), "unixpacket", d.Config.API.Socket+shm.SocketSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.hosts.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { _ = w.clients.Serve(l) }) // ends with Stop
	running.Go(func() {                           // ends with done
		for {
			select {
			case <-done:
				return
			case <-time.After(FeedEvery):
				w.clients.KeepPages(time.Now(), d.Memory.Used() > d.Memory.Limit()/2)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d.Config.API.DrainTimeout.Duration)
		defer cancel()
		w.clients.Refuse(base.ErrDraining)
		w.hosts.Drain(ctx)
		w.hosts.Quiesce()
		close(d.Stopping)
		w.clients.Finish(base.ErrDraining)
		w.clients.Stop()
		w.hosts.Close()
		close(done)
		running.Wait()
		d.FDs.Close()
	})
	t.Cleanup(stop)
	return stop
}

// attachRings makes n sockets with rings at the first address, whose clients say that they understand pairs. They are
// closed when the test ends.
func (w *world) attachRings(t *testing.T, cfg *config.Config, n int) (*datagram.Local, []*ringSock) {
	t.Helper()
	addr := cfg.RDS.Addresses[0]
	local := w.hosts.Engine(addr).(*datagram.Local)
	var socks []*ringSock
	for range n {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
		t.Cleanup(r.Close)
		local.Lock()
		s := local.Socket(uint16(r.Bound.GetLocal().GetPort())).Options().Data.(*ringSock)
		s.pairs.wanted = true
		local.Unlock()
		socks = append(socks, s)
	}
	return local, socks
}
