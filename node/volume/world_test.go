package volume

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// unknownBoot stands for a kernel that does not say which start of the machine this is (no /proc).
const unknownBoot = "?"

// testNode is a Host with its reactor, which can be stopped and started again.
type testNode struct {
	t      testing.TB
	cfg    Config
	drv    driver
	wrap   func(string, blk.Device) blk.Device
	h      *Host
	r      *reactor.Reactor
	quiet  bool        // no log
	memory *quota.Node // nil: none is counted
	evict  func() bool // Deps.Evict
	links  func(transport.OneSidedProvider) transport.OneSidedProvider
	unlink func()                     // closes what links made
	others []Transport                // beside TCP
	boot   string                     // of its machine; "": this one's; unknownBoot
	disk   func(string) (Disk, error) // the same; nil
}

// The server is 127.0.0.2, and 127.0.0.3 for second paths; the client 127.0.0.1.
var (
	serverAddrs = []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")}
	clientAddrs = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
)

// fast are settings that let tests see what takes seconds by default. Silence ends
// a path after 5 s only: a busy machine may give a node no turn for a few hundred
// milliseconds, and a path lost for that is noise in a test about something else.
// A test about silence sets MissedLimit to soon.
func fast(c Config) Config {
	c.Heartbeat, c.MissedLimit = 50*time.Millisecond, 100
	c.ReconnectMin, c.ReconnectMax = 20*time.Millisecond, 200*time.Millisecond
	return c
}

// soon is a limit of missed heartbeats for tests about silent paths: 200 ms.
const soon = 4

// freePort is a port nobody listens on at the test's addresses.
func freePort(t testing.TB) uint16 {
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// newServerNode is a node that exports, newClientNode one that maps; both on
// the port.
func newServerNode(t testing.TB, port uint16) *testNode {
	return &testNode{t: t, cfg: fast(Config{Addresses: serverAddrs, Port: port, Name: "server", StateDir: stateDir(t)})}
}

func newClientNode(t testing.TB, port uint16) *testNode {
	return &testNode{t: t, cfg: fast(Config{Addresses: clientAddrs, Port: port, Name: "client", Listen: ListenNever, StateDir: stateDir(t)})}
}

// stateDir is short enough for sockets.
func stateDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "vol")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// writesBy has the node write its state by replace, from its next start on.
func (n *testNode) writesBy(replace func(name string, b []byte) error) {
	n.disk = func(dir string) (Disk, error) {
		d, err := openDirectory(dir, os.OpenFile)
		if err != nil {
			return nil, err
		}
		d.replace = replace
		return d, nil
	}
}

// start starts the node; its end is the test's unless stop was called.
func (n *testNode) start() *Host {
	n.t.Helper()
	if n.drv.present == nil {
		n.drv = kernelDriver
	}
	var err error
	n.r, err = reactor.New(reactor.Options{CPU: -1, SpinFor: -1, Name: n.cfg.Name})
	if err != nil {
		n.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(testLog{n.t, n.cfg.Name}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if n.quiet {
		log = nil
	}
	var links transport.OneSidedProvider = tcp.New(n.r)
	if n.links != nil {
		links = n.links(links)
	}
	m := thisMachine(nil)
	if n.boot != "" {
		m.Boot = strings.TrimPrefix(n.boot, unknownBoot)
	}
	if n.disk != nil {
		m.Disk = n.disk
	}
	n.h, err = newHostOn(n.cfg, Deps{Provider: links, Others: n.others, Reactors: []*reactor.Reactor{n.r}, Log: log, Layer: n.wrap, Memory: n.memory, Evict: n.evict}, n.drv, m)
	if err != nil {
		n.r.Close()
		n.t.Fatalf("%s: %v", n.cfg.Name, err)
	}
	h := n.h
	n.t.Cleanup(func() {
		if n.h == h {
			n.stop()
		}
	})
	return h
}

func (n *testNode) stop() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.h.Close(ctx); err != nil {
		n.t.Errorf("%s: close: %v\n%s", n.cfg.Name, err, stacks())
	}
	n.h = nil
	if n.unlink != nil {
		n.unlink()
	}
	n.r.Close()
}

func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}

// testLog brings log lines into the test's output.
type testLog struct {
	t    testing.TB
	name string
}

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s: %s", l.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

// ctx is one that ends with the test, or after 20 s.
func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func (n *testNode) node() string { return n.cfg.Addresses[0].String() }

// twoPaths go to both addresses of the server.
func (n *testNode) twoPaths() []PathSpec {
	return []PathSpec{{Src: "127.0.0.1", Dst: n.cfg.Addresses[0].String()}, {Src: "127.0.0.1", Dst: n.cfg.Addresses[1].String()}}
}

func memory(name string, size uint64) ExportSpec {
	return ExportSpec{Name: name, Kind: KindMemory, Size: size}
}

func file(t *testing.T, name string, size int64) ExportSpec {
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return ExportSpec{Name: name, Path: path}
}

func mustExport(t testing.TB, h *Host, s ExportSpec) ExportInfo {
	t.Helper()
	i, err := h.Export(testCtx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func mustMap(t testing.TB, h *Host, s MapSpec) MappingInfo {
	t.Helper()
	i, err := h.Map(testCtx(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// open connects to a mapping's socket.
func open(t *testing.T, i MappingInfo) *nbd.Client {
	t.Helper()
	c, err := nbd.DialURI(testCtx(t), i.URI)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// pattern fills p with what belongs at off in a generation.
func pattern(p []byte, off int64, gen byte) {
	for i := range p {
		x := off + int64(i)
		p[i] = byte(x) ^ byte(x>>9)*31 ^ byte(x>>17) ^ gen
	}
}

// writePattern and checkPattern go over n bytes at off in pieces.
func writePattern(w io.WriterAt, off, n int64, gen byte, piece int) error {
	p := make([]byte, piece)
	for at := off; at < off+n; at += int64(piece) {
		b := p[:min(int64(piece), off+n-at)]
		pattern(b, at, gen)
		if _, err := w.WriteAt(b, at); err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
	}
	return nil
}

func checkPattern(r io.ReaderAt, off, n int64, gen byte, piece int) error {
	p, want := make([]byte, piece), make([]byte, piece)
	for at := off; at < off+n; at += int64(piece) {
		b := p[:min(int64(piece), off+n-at)]
		if _, err := r.ReadAt(b, at); err != nil && err != io.EOF {
			return fmt.Errorf("read at %d: %w", at, err)
		}
		pattern(want[:len(b)], at, gen)
		if string(b) != string(want[:len(b)]) {
			return fmt.Errorf("wrong bytes in %d at %d", len(b), at)
		}
	}
	return nil
}

// eventually waits until f is true, for 10 s at most.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// proxy is a TCP proxy whose connections can be cut, and that can be shut.
type proxy struct {
	l    net.Listener
	to   string
	mu   sync.Mutex
	shut bool                  // guarded by mu; refuses
	hold bool                  // guarded by mu; takes bytes and passes none on
	cond sync.Cond             // hold, or shut, has changed
	live map[net.Conn]struct{} // guarded by mu
	wg   sync.WaitGroup
}

func newProxy(t *testing.T, from, to string) *proxy {
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, live: map[net.Conn]struct{}{}}
	p.cond.L = &p.mu
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.set(true, false)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) serve() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		shut := p.shut
		p.mu.Unlock()
		b, err := net.Dial("tcp", p.to)
		if shut || err != nil {
			a.Close()
			if err == nil {
				b.Close()
			}
			continue
		}
		p.mu.Lock()
		p.live[a], p.live[b] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.pipe(a, b) })
		p.wg.Go(func() { p.pipe(b, a) })
	}
}

func (p *proxy) pipe(from, to net.Conn) {
	defer func() {
		from.Close()
		to.Close()
		p.mu.Lock()
		delete(p.live, from)
		delete(p.live, to)
		p.mu.Unlock()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		for p.hold && !p.shut {
			p.cond.Wait()
		}
		p.mu.Unlock()
		if _, e := to.Write(b[:n]); err != nil || e != nil {
			return
		}
	}
}

// set cuts what there is and refuses what comes (shut), or lets nothing through
// without a word (hold).
func (p *proxy) set(shut, hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut, p.hold = shut, hold
	p.cond.Broadcast()
	if shut {
		p.cutLocked()
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *proxy) cutLocked() {
	for c := range p.live {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}
