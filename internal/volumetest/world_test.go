package volumetest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// world is two daemons, one that exports and one that maps, with proxies
// between them. Each world has addresses of its own.
type world struct {
	t       testing.TB
	subnet  string
	port    int // of datagrams
	volumes int // TCP port of volumes
	dir     string
	paths   []*proxy
	server  *daemon
	client  *daemon
}

// worlds numbers them: 127.77.N.0/24.
var worlds atomic.Uint32

const (
	serverHost = 1
	clientHost = 2
	proxyHost  = 11 // and on
)

func newWorld(t testing.TB) *world {
	w := &world{t: t, subnet: fmt.Sprintf("127.77.%d.", worlds.Add(1))}
	a, b := netip.MustParseAddr(w.at(serverHost)), netip.MustParseAddr(w.at(clientHost))
	w.port, w.volumes = rdsdtest.FreePort(t, a, b), rdsdtest.FreePort(t, a, b)
	dir, err := os.MkdirTemp("", "vt") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	t.Cleanup(func() { os.RemoveAll(dir) })
	return w
}

func (w *world) at(host int) string { return fmt.Sprint(w.subnet, host) }

// serve starts the daemon that exports; obeying: the test binary, whose stores
// do as they are told. client starts the one that maps.
func (w *world) serve(obeying bool, settings string) *daemon {
	w.server = w.daemon("server", serverHost, obeying, settings)
	return w.server
}

func (w *world) map_(settings string) *daemon {
	w.client = w.daemon("client", clientHost, false, settings)
	return w.client
}

// addPaths makes n proxies.
func (w *world) addPaths(n int) {
	for range n {
		w.paths = append(w.paths, newProxy(w.t, w.at(proxyHost+len(w.paths)), w.at(clientHost), fmt.Sprintf("%s:%d", w.at(serverHost), w.volumes)))
	}
}

// file is the path of a store.
func (w *world) file(name string) string { return filepath.Join(w.dir, name+".img") }

// export exports a new file of n bytes.
func (w *world) export(name string, n uint64) {
	w.t.Helper()
	if _, err := w.server.vols().Export(w.ctx(), rdsd.ExportSpec{Name: name, Path: w.file(name), Create: true, Size: n, LogicalBlock: blockSize, Persist: true}); err != nil {
		w.t.Fatal(err)
	}
}

// mount maps a volume over the proxies, or without them over one path.
func (w *world) mount(s rdsd.MapSpec) *rdsd.Mapping {
	w.t.Helper()
	s.Node = w.at(serverHost)
	for _, p := range w.paths {
		s.Paths = append(s.Paths, rdsd.PathSpec{Src: w.at(clientHost), Dst: p.addr()})
	}
	m, err := w.client.vols().Map(w.ctx(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pathsUp(m, max(len(w.paths), 1))
	return m
}

// pathsUp waits until n paths of a mapping are connected.
func (w *world) pathsUp(m *rdsd.Mapping, n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d paths are connected", n), func() bool {
		now, err := w.client.vols().Mapping(w.ctx(), m.ID)
		return err == nil && now.PathsUp == n
	})
}

// ctx is one of 30 s.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

// eventually waits until f is true, for 15 s at most.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}
