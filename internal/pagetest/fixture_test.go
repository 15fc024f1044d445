package pagetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/node"
	"github.com/rdsd/rdsd/node/config"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var (
	addrA = netip.MustParseAddr("127.0.0.61")
	addrB = netip.MustParseAddr("127.0.0.62")
	addrC = netip.MustParseAddr("127.0.0.63")
)

// hostile is what an application calls itself that wants a script to run in the browser
// of whoever looks.
const hostile = `<img src=x onerror="window.hit=1"><script>window.hit=1</script>`

// Ports of datagrams.
const (
	portTalk   = 4001
	portStream = 5001
	portBatch  = 7001
)

// crowd are further sockets of b, of which several are congested for the pictures.
var crowd = []struct {
	port  uint16
	label string
}{{2049, "archive"}, {9300, "search index"}, {21555, "billing"}, {40007, "replica"}, {52100, "thumbnails"}}

// world is two nodes with applications and a volume, of which parts can be stopped and
// started again while somebody looks.
type world struct {
	t       *testing.T
	a, b    *site
	third   *process
	relay   *relay
	direct  netip.AddrPort // where b's volumes are
	reading chan bool      // whether the reader of b reads
	crowded atomic.Bool    // the crowd of b does not
}

// site is a node with its applications.
type site struct {
	cfg    *config.Config
	client *rdsd.Client
	apps   sync.WaitGroup
	quit   context.CancelFunc
	done   chan error
}

// mapHostile maps a volume that has the name hostile, at a socket of such a name.
func (w *world) mapHostile() {
	at := filepath.Join(filepath.Dir(w.a.cfg.API.Socket), `<img src=x onerror="window.hit=1">`)
	if _, err := w.a.client.Volumes().Map(context.Background(), rdsd.MapSpec{Node: addrB.String(), Name: hostile, ID: "odd", Attach: rdsd.AttachSocket, SocketPath: at}); err != nil {
		w.t.Errorf("mapping a volume with a hostile name: %v", err)
	}
}

// unmapHostile takes it away.
func (w *world) unmapHostile() {
	if err := w.a.client.Volumes().Unmap(context.Background(), "odd", false); err != nil {
		w.t.Errorf("unmapping a volume with a hostile name: %v", err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, reading: make(chan bool, 1)}
	var ports [3]uint16 // of datagrams, of the pages, of volumes
	for i := range ports {
		var err error
		if ports[i], err = freeport.On(addrA, addrB, addrC); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	make := func(name string, addr netip.Addr) *site {
		cfg := config.Default()
		cfg.RDS.Addresses = []netip.Addr{addr}
		cfg.RDS.Port = ports[0]
		cfg.RDS.ReconnectMax.Duration = time.Second
		cfg.API.Socket = filepath.Join(dir, name+".sock")
		cfg.API.DrainTimeout.Duration = 200 * time.Millisecond
		cfg.HTTP.Listen = netip.AddrPortFrom(addr, ports[1]).String()
		cfg.HTTP.PeerPage = fmt.Sprintf("http://{address}:%d/", ports[1])
		cfg.Volumes.Port = ports[2]
		cfg.Volumes.StateDir = filepath.Join(dir, name+".state")
		cfg.Volumes.SocketDir = filepath.Join(dir, name+".volumes")
		return &site{cfg: cfg}
	}
	w.a, w.b = make("a", addrA), make("b", addrB)
	w.b.cfg.Volumes.Exports = []config.VolumeExport{{Name: "demo", Size: 4 << 20}, {Name: hostile, Size: 1 << 20}}
	w.direct = netip.AddrPortFrom(addrB, ports[2])
	w.relay = newRelay(t, w.direct)
	w.startB()
	w.startA()
	w.third = newProcess(t, dir, ports[1])
	w.third.start()
	t.Cleanup(func() {
		w.a.stop(t)
		w.b.stop(t)
	})
	return w
}

// start runs the node of a site.
func (s *site) start(t *testing.T) context.Context {
	t.Helper()
	n, err := node.New(s.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, quit := context.WithCancel(context.Background())
	s.quit, s.done = quit, make(chan error, 1)
	go func() { s.done <- n.Run(ctx) }()
	<-n.Ready()
	if s.client, err = rdsd.Dial(s.cfg.API.Socket); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// stop ends a site: its applications, then its node.
func (s *site) stop(t *testing.T) {
	t.Helper()
	if s.quit == nil {
		return
	}
	s.quit()
	s.client.Close()
	s.apps.Wait()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	s.quit = nil
}

func (w *world) bind(ctx context.Context, s *site, port uint16, label string, opts ...rdsd.BindOption) *rdsd.Socket {
	w.t.Helper()
	sock, err := s.client.Bind(ctx, netip.AddrPortFrom(s.cfg.RDS.Addresses[0], port), append(opts, rdsd.WithLabel(label))...)
	if err != nil {
		w.t.Fatal(err)
	}
	return sock
}

// startB starts the node that reads and exports.
func (w *world) startB() {
	ctx := w.b.start(w.t)
	talk := w.bind(ctx, w.b, portTalk, "answerer")
	stream := w.bind(ctx, w.b, portStream, "reader", rdsd.WithRecvBuffer(64<<10), rdsd.WithRecvWindow(8, 8<<10))
	for _, c := range crowd {
		sock := w.bind(ctx, w.b, c.port, c.label, rdsd.WithRecvBuffer(64<<10), rdsd.WithRecvWindow(8, 8<<10))
		w.b.apps.Go(func() {
			defer sock.Close()
			for ctx.Err() == nil {
				once, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				if w.crowded.Load() {
					<-once.Done()
				} else {
					_, _ = sock.Recv(once) // nothing came
				}
				cancel()
			}
		})
	}
	w.b.apps.Go(func() { // answers
		defer talk.Close()
		for {
			d, err := talk.Recv(ctx)
			if err != nil {
				return
			}
			_ = talk.Send(ctx, d.Addr, d.Payload)
		}
	})
	w.b.apps.Go(func() { // reads, when it is told to
		defer stream.Close()
		on := true
		for ctx.Err() == nil {
			if !on {
				select {
				case on = <-w.reading:
				case <-ctx.Done():
				}
				continue
			}
			select {
			case on = <-w.reading:
				continue
			default:
			}
			once, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			_, _ = stream.Recv(once) // nothing came
			cancel()
		}
	})
}

// startA starts the node that sends and maps.
func (w *world) startA() {
	ctx := w.a.start(w.t)
	talk := w.bind(ctx, w.a, portTalk, hostile)
	stream := w.bind(ctx, w.a, portStream, "stream")
	w.a.apps.Go(func() {
		defer talk.Close()
		for tick(ctx, 5*time.Millisecond) {
			once, cancel := context.WithTimeout(ctx, time.Second)
			if talk.Send(once, netip.AddrPortFrom(addrB, portTalk), make([]byte, 64)) == nil {
				_, _ = talk.Recv(once) // lost with the other node
			}
			cancel()
		}
	})
	w.a.apps.Go(func() {
		defer stream.Close()
		for tick(ctx, 2*time.Millisecond) {
			once, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			_ = stream.Send(once, netip.AddrPortFrom(addrB, portStream), make([]byte, 1024)) // full: that is what is looked at
			cancel()
		}
	})
	batch := w.bind(ctx, w.a, portBatch, "batch")
	w.a.apps.Go(func() {
		defer batch.Close()
		for i := 0; tick(ctx, 2*time.Millisecond); i++ {
			once, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			_ = batch.Send(once, netip.AddrPortFrom(addrB, crowd[i%len(crowd)].port), make([]byte, 1024))
			cancel()
		}
	})
	m, err := w.a.client.Volumes().Map(ctx, rdsd.MapSpec{Node: addrB.String(), Name: "demo", ID: "v1", Attach: rdsd.AttachSocket, Policy: rdsd.PolicyRoundRobin,
		Paths: []rdsd.PathSpec{{Src: addrA.String(), Dst: w.relay.at.String()}, {Src: addrA.String(), Dst: w.direct.String()}}})
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range 4 {
		w.a.apps.Go(func() { work(ctx, m.URI, int64(i)<<20) })
	}
}

// work writes and reads a part of a volume until ctx ends. Its connection ends, and is
// made anew, when the node it is to ends or the other one forgets what was in memory.
func work(ctx context.Context, uri string, from int64) {
	p := make([]byte, 4096)
	for tick(ctx, 100*time.Millisecond) {
		disk, err := nbd.DialURI(ctx, uri)
		if err != nil {
			continue
		}
		// Requests wait while no path is up: they end with the node.
		stop := context.AfterFunc(ctx, func() { disk.Close() })
		for i := int64(0); err == nil && tick(ctx, 2*time.Millisecond); i++ {
			if _, err = disk.WriteAt(p, from+i%128*4096); err == nil {
				_, err = disk.ReadAt(p, from+i%128*4096)
			}
		}
		stop()
		disk.Close()
	}
}

func tick(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// relay carries connections of the volume, until it is cut.
type relay struct {
	at net.Addr
	to netip.AddrPort

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newRelay(t *testing.T, to netip.AddrPort) *relay {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(addrB, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{at: l.Addr(), to: to, conns: map[net.Conn]bool{}}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.set(true)
		r.wg.Wait()
	})
	return r
}

func (r *relay) carry(in net.Conn) {
	defer in.Close()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: addrA.AsSlice()}, Timeout: time.Second}
	out, err := d.Dial("tcp", r.to.String())
	if err != nil {
		return
	}
	defer out.Close()
	r.mu.Lock()
	if r.cut {
		r.mu.Unlock()
		return
	}
	r.conns[in], r.conns[out] = true, true
	r.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(gate{way[1], r}, way[0]) // until either end or the relay closes it
			way[0].Close()
			way[1].Close()
		})
	}
	both.Wait()
	r.mu.Lock()
	delete(r.conns, in)
	delete(r.conns, out)
	r.mu.Unlock()
}

// gate loses what comes after the cut.
type gate struct {
	net.Conn
	r *relay
}

func (g gate) Write(p []byte) (int, error) {
	g.r.mu.Lock()
	cut := g.r.cut
	g.r.mu.Unlock()
	if cut {
		return len(p), nil
	}
	return g.Conn.Write(p)
}

// set cuts the relay, or mends it. A cut loses what is on the way for a moment before it
// ends the connections, so that there are requests without an answer.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if !cut {
		return
	}
	r.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	r.mu.Lock()
	for c := range r.conns {
		c.Close()
	}
}
