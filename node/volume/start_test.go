package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport/tcp"
)

// hasty starts the node on a machine where the start waits for file systems 50 ms at most.
func hasty(n *testNode, tune func(m *Machine)) *Host {
	n.t.Helper()
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { r.Close() })
	m := thisMachine(nil)
	m.Timeout = func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		if d == startWait {
			d = 50 * time.Millisecond
		}
		return context.WithTimeout(ctx, d)
	}
	tune(m)
	began := time.Now()
	h, err := newHostOn(n.cfg, Deps{Provider: tcp.New(r), Reactors: []*reactor.Reactor{r}}, kernelDriver, m)
	if err != nil {
		n.t.Fatalf("after %v: %v", time.Since(began), err)
	}
	n.t.Cleanup(func() {
		if err := h.Close(testCtx(n.t)); err != nil && !errors.Is(err, syscall.ESHUTDOWN) { // the test has closed it
			n.t.Error(err)
		}
	})
	return h
}

// TestStartBesideAFileSystemThatStandsStill: exports whose file system stands still keep nothing
// else from being offered; more of them than are looked at at a time keep nothing from being
// there, and others are opened when a client comes.
func TestStartBesideAFileSystemThatStandsStill(t *testing.T) {
	for _, stuck := range []int{2, startLooks + 2, 4 * startLooks} {
		port := freePort(t)
		server, client := newServerNode(t, port), newClientNode(t, port)
		server.start()
		kept := file(t, "kept", 1<<20)
		kept.Persist = true
		mustExport(t, server.h, kept)
		server.stop()
		want := map[string]string{"well": "closed", "mem": "open", "kept": "closed"}
		for i := range stuck {
			name := fmt.Sprint("stuck", i)
			want[name] = "failed"
			server.cfg.Exports = append(server.cfg.Exports, ExportSpec{Name: name, Path: "/stuck/" + name})
		}
		server.cfg.Exports = append(server.cfg.Exports, file(t, "well", 1<<20), memory("mem", 1<<20))
		if stuck > startLooks { // nobody has had a turn
			want["well"], want["kept"] = "failed", "failed"
		}
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "below"), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		server.cfg.Roots = []RootSpec{{Path: root}}
		release := make(chan struct{})
		h := hasty(server, func(m *Machine) {
			m.Store = func(path string, o blk.FileOptions) (blk.Device, error) {
				if strings.HasPrefix(path, "/stuck/") {
					<-release
				}
				return blk.OpenFile(path, o)
			}
		})
		for _, x := range h.Exports() {
			if x.State != want[x.Name] || x.State == "failed" && !strings.Contains(x.Error, "in time") {
				t.Errorf("%s is %q (%s), want %q", x.Name, x.State, x.Error, want[x.Name])
			}
			delete(want, x.Name)
		}
		if len(want) > 0 {
			t.Errorf("not there: %v", want)
		}
		if n := len(h.waits.all); n < maxWaits/2 {
			t.Errorf("%d exports stand still, and %d turns are left for what is asked afterwards", stuck, n)
		}
		client.start()
		for _, name := range []string{"well", "mem", "kept", "below"} {
			mustMap(t, client.h, MapSpec{Node: server.node(), Name: name})
		}
		close(release)
	}
}

// TestNobodyIsLetInBeforeTheStartIsDone: while a store stands still at the start, volumes behind
// it do not seem not to exist.
func TestNobodyIsLetInBeforeTheStartIsDone(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "below"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	server.cfg.Roots = []RootSpec{{Path: root}}
	server.cfg.Exports = []ExportSpec{{Name: "stuck", Path: "/stuck"}, file(t, "well", 1<<20)}
	client.start()
	hasty(server, func(m *Machine) {
		timeout := m.Timeout
		m.Timeout = func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
			if d == startWait { // it has the time that the machine takes for the test
				return context.WithCancel(ctx)
			}
			return timeout(ctx, d)
		}
		var once atomic.Bool
		m.Store = func(path string, o blk.FileOptions) (blk.Device, error) {
			if path != "/stuck" || once.Swap(true) {
				return blk.OpenFile(path, o)
			}
			for _, name := range []string{"well", "below"} {
				_, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: name})
				is(t, name+" while the server starts", err, syscall.EAGAIN, "is starting")
			}
			return nil, errors.New("it stood still")
		}
	})
	for _, name := range []string{"well", "below"} {
		mustMap(t, client.h, MapSpec{Node: server.node(), Name: name})
	}
}

// TestRootThatStandsStill: a root whose directory is not held yet keeps the node from nothing, and
// its place among the roots: what is below it is waited for, not found below another.
func TestRootThatStandsStill(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	for i := range 2 {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "disk"), make([]byte, (i+1)<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		server.cfg.Roots = append(server.cfg.Roots, RootSpec{Path: root})
	}
	release := make(chan struct{})
	hasty(server, func(m *Machine) {
		m.Go = func(f func()) {
			pc, _, _, _ := runtime.Caller(1)
			if still := strings.HasSuffix(runtime.FuncForPC(pc).Name(), "(*Host).do"); !still {
				go f()
				return
			}
			go func() { // ends with the test
				<-release
				f()
			}()
		}
	})
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	if m.Info.Size != 1<<20 {
		t.Errorf("%d bytes: it was found below the second root", m.Info.Size)
	}
	close(release)
}
