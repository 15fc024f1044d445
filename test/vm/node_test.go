package vm

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
)

const rtrsPort = 1234 // the kernel's default

// node is what an rdsd does with volumes, over RoCE in user space: the shell, the cores, the
// links and the provider, without the daemon around them.
type node struct {
	*volume.Host
	t   *testing.T
	dev *soft.Device
	end func()
}

// newNode starts a node at an address of our namespace. change may set what the
// configuration has besides.
func newNode(t *testing.T, addr netip.Addr, change func(*volume.Config)) *node {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: "judged"})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := soft.Open(soft.Config{Addr: addr, Reactor: r, Log: log, Within: within})
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	prov := ib.New(dev)
	cfg := volume.Config{Addresses: []netip.Addr{addr}, Port: rtrsPort, Name: "judged", QueueDepth: 64, MaxIO: 124 << 10, StateDir: t.TempDir()}
	if change != nil {
		change(&cfg)
	}
	h, err := volume.New(cfg, volume.Deps{Provider: prov, Reactors: []*reactor.Reactor{r}, Log: log})
	if err != nil {
		dev.Close()
		r.Close()
		t.Fatal(err)
	}
	n := &node{Host: h, t: t, dev: dev}
	n.end = func() {
		n.end = func() {}
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		prov.Close()
		if err := dev.Close(); err != nil {
			t.Errorf("close of the device: %v", err)
		}
		r.Close()
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range h.Paths() {
				t.Logf("%+v", p)
			}
			for _, c := range dev.State().Counters {
				if c.Value != 0 {
					t.Logf("device: %s %d", c.Name, c.Value)
				}
			}
		}
		n.end()
	})
	return n
}

// ctx ends after a minute.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	n.t.Cleanup(cancel)
	return ctx
}

// export offers memory under a name.
func (n *node) export(name string, size uint64) {
	n.t.Helper()
	if _, err := n.Export(n.ctx(), volume.ExportSpec{Name: name, Kind: volume.KindMemory, Size: size}); err != nil {
		n.t.Fatal(err)
	}
}

// mapped maps a volume of the kernel.
func (n *node) mapped(s volume.MapSpec) volume.MappingInfo {
	n.t.Helper()
	m, err := n.Map(n.ctx(), s)
	if err != nil {
		n.t.Fatal(err)
	}
	return m
}

// unmap ends a mapping whose users have gone.
func (n *node) unmap(m volume.MappingInfo) {
	n.t.Helper()
	if err := n.Unmap(n.ctx(), m.ID, false); err != nil {
		n.t.Error(err)
	}
}

// testLog brings log lines into the test's output.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}
