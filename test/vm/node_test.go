package vm

import (
	"context"
	"errors"
	"io"
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
	dev  *soft.Device
	prov *ib.Provider
	r    *reactor.Reactor

	t *testing.T // nil in a process of its own
}

// openNode starts a node at an address of our namespace. change may set what the
// configuration has besides.
func openNode(addr netip.Addr, stateDir string, out io.Writer, change func(*volume.Config)) (n *node, err error) {
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	n = &node{}
	if n.r, err = reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: "judged"}); err != nil {
		return nil, err
	}
	if n.dev, err = soft.Open(soft.Config{Addr: addr, Reactor: n.r, Log: log, Within: within(spaceOf(addr))}); err != nil {
		n.r.Close()
		return nil, err
	}
	n.prov = ib.New(n.dev)
	cfg := volume.Config{Addresses: []netip.Addr{addr}, Port: rtrsPort, Name: "judged", QueueDepth: 64, MaxIO: 124 << 10, StateDir: stateDir}
	if change != nil {
		change(&cfg)
	}
	if n.Host, err = volume.New(cfg, volume.Deps{Provider: n.prov, Reactors: []*reactor.Reactor{n.r}, Log: log}); err != nil {
		err = errors.Join(err, n.dev.Close())
		n.r.Close()
		return nil, err
	}
	return n, nil
}

// end ends the node in order.
func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	err := n.Close(ctx)
	n.prov.Close()
	err = errors.Join(err, n.dev.Close())
	n.r.Close()
	return err
}

// newNode starts a node that ends with the test.
func newNode(t *testing.T, addr netip.Addr, change func(*volume.Config)) *node {
	t.Helper()
	n, err := openNode(addr, t.TempDir(), testLog{t}, change)
	if err != nil {
		t.Fatal(err)
	}
	n.t = t
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range n.Paths() {
				t.Logf("%+v", p)
			}
			for _, c := range n.dev.State().Counters {
				if c.Value != 0 {
					t.Logf("device: %s %d", c.Name, c.Value)
				}
			}
		}
		if err := n.end(); err != nil {
			t.Errorf("the node's end: %v", err)
		}
	})
	return n
}

// ctx ends after a minute (-vm.slow).
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), longer(time.Minute))
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
