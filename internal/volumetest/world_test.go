package volumetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/roce"
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
	over    over
	rdma    int // RDMA port of volumes
	paths   []path
	server  *daemon
	client  *daemon
}

// worlds numbers them: 127.77.N.0/24, unless they have RDMA.
var worlds atomic.Uint32

// over says which transports a world's paths are of, in turn.
type over []string

var (
	overTCP  = over{rdsd.TransportTCP}
	overRDMA = over{rdsd.TransportIB}
	overBoth = over{rdsd.TransportTCP, rdsd.TransportIB}
)

func (o over) String() string { return strings.Join(o, " and ") }

func (o over) hasRDMA() bool { return slices.Contains(o, rdsd.TransportIB) }

// some is how often a thing is done that is done n times over TCP alone: of paths over RDMA
// a share.
func (o over) some(n int) int {
	if o.hasRDMA() {
		n = max(n / *rdmaShare, 1)
	}
	return some(n)
}

// path is a way between two daemons that fails on command: a proxy or a rocePath.
type path interface {
	spec() rdsd.PathSpec
	addr() string
	set(way)          // what becomes of bytes, or packets, in both directions
	setEach(u, d way) // in each
	cut()             // resets what there is; new connections are made
	close()           // cuts, and refuses what comes until open
	open()
	holdLast() // holds the connection made last until release
	release()
}

const (
	serverHost = 1
	clientHost = 2
	proxyHost  = 11 // and on
)

func newWorld(t testing.TB, o over) *world {
	w := &world{t: t, over: o, rdma: 1234}
	if o.hasRDMA() {
		w.subnet = freeSubnet(t)
	} else {
		w.subnet = fmt.Sprintf("127.77.%d.", worlds.Add(1))
	}
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

// rdmaNet is the second byte of the addresses of worlds with RDMA. RoCE's port is the same
// everywhere, so that two runs of these tests on one machine differ in their addresses.
var rdmaNet = 78 + rand.IntN(100)

// freeSubnet returns one of this run where nobody has RoCE's port.
func freeSubnet(t testing.TB) string {
	for range 50 {
		subnet := fmt.Sprintf("127.%d.%d.", rdmaNet, worlds.Add(1))
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(subnet + fmt.Sprint(serverHost)), Port: roce.Port})
		if err == nil {
			c.Close()
			return subnet
		}
	}
	t.Skip("elsewhere: UDP port 4791, of RoCE, is taken on every loopback address; the kernel's rdma_rxe has it")
	return ""
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

// addPaths makes n paths of the world's transports.
func (w *world) addPaths(n int) {
	for range n {
		at := w.at(proxyHost + len(w.paths))
		if w.over[len(w.paths)%len(w.over)] == rdsd.TransportIB {
			w.paths = append(w.paths, newRocePath(w.t, at, w.at(clientHost), w.at(serverHost), w.rdma))
			continue
		}
		w.paths = append(w.paths, newProxy(w.t, at, w.at(clientHost), fmt.Sprintf("%s:%d", w.at(serverHost), w.volumes)))
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

// mount maps a volume over the paths, or without them over one path.
func (w *world) mount(s rdsd.MapSpec) *rdsd.Mapping {
	w.t.Helper()
	s.Node = w.at(serverHost)
	for _, p := range w.paths {
		s.Paths = append(s.Paths, p.spec())
	}
	if w.over.hasRDMA() && len(w.paths) == 0 {
		s.Paths = []rdsd.PathSpec{{Src: w.at(clientHost), Dst: fmt.Sprintf("%s:%d", w.at(serverHost), w.rdma), Transport: rdsd.TransportIB}}
	}
	m, err := w.client.vols().Map(w.ctx(), s)
	if err != nil {
		w.t.Fatal(err)
	}
	w.pathsUp(m, max(len(w.paths), 1))
	w.goesOver(m)
	return m
}

// goesOver fails the test if the paths of a mapping are of other transports than the world's.
func (w *world) goesOver(m *rdsd.Mapping) {
	w.t.Helper()
	paths, err := w.client.vols().Paths(w.ctx(), m.Session)
	if err != nil {
		w.t.Fatal(err)
	}
	want := []string{w.over[len(w.over)-1]}
	if len(w.paths) > 0 {
		want = nil
		for i := range w.paths {
			want = append(want, w.over[i%len(w.over)])
		}
	}
	var got []string
	for _, p := range paths {
		got = append(got, p.Transport)
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		w.t.Fatalf("paths over %v, want %v", got, want)
	}
}

// pathsUp waits until n paths of a mapping are connected.
func (w *world) pathsUp(m *rdsd.Mapping, n int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d paths are connected", n), func() bool {
		now, err := w.client.vols().Mapping(w.ctx(), m.ID)
		return err == nil && now.PathsUp == n
	})
}

// ctx is one of a minute.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
