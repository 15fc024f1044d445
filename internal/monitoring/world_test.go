package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// world is two daemons under traffic, one of whose ports nobody reads and one of whose
// volumes loses a path again and again, and a Prometheus that looks at them.
type world struct {
	t    *testing.T
	ctx  context.Context
	a, b *rdsdtest.Daemon
	http [2]string // where their pages are
	prom string    // where Prometheus is
	wg   sync.WaitGroup
}

var addrC = netip.MustParseAddr("127.0.0.13") // of the path that is cut

func newWorld(t *testing.T) *world {
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{t: t, ctx: ctx}
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	port := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	volumes := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	start := func(i int, addr netip.Addr) *rdsdtest.Daemon {
		w.http[i] = netip.AddrPortFrom(addr, uint16(rdsdtest.FreePort(t, addr))).String()
		return rdsdtest.Start(t, addr, port, "--volume-port", strconv.Itoa(volumes), "--http", w.http[i])
	}
	w.a, w.b = start(0, rdsdtest.AddrA), start(1, rdsdtest.AddrB)
	w.datagrams()
	w.flap()
	w.lose()
	w.congest()
	w.volume(netip.AddrPortFrom(rdsdtest.AddrB, uint16(volumes)))
	w.prometheus()
	return w
}

func (w *world) bind(d *rdsdtest.Daemon, fe rdsd.FrontEnd, opts ...rdsd.BindOption) *rdsd.Socket {
	w.t.Helper()
	s, err := d.Dial(rdsd.WithFrontEnd(fe)).Bind(w.ctx, netip.AddrPortFrom(d.Addr, 0), opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// every calls f again and again until the world ends.
func (w *world) every(d time.Duration, f func(ctx context.Context)) {
	w.wg.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-w.ctx.Done():
				return
			case <-tick.C:
				f(w.ctx)
			}
		}
	})
}

// datagrams go both ways, over rings and over gRPC.
func (w *world) datagrams() {
	for _, fe := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
		a, b := w.bind(w.a, fe, rdsd.WithOutcomes()), w.bind(w.b, fe)
		for _, p := range [][2]*rdsd.Socket{{a, b}, {b, a}} {
			from, to := p[0], p[1]
			w.every(5*time.Millisecond, func(ctx context.Context) { _ = from.Send(ctx, to.LocalAddr(), make([]byte, 300)) })
			w.wg.Go(func() {
				for {
					if _, err := to.Recv(w.ctx); err != nil {
						return
					}
				}
			})
		}
	}
}

// flap has a link made anew again and again, whose handshake is a round trip that is
// measured: on links that are in use there are no heartbeats.
func (w *world) flap() {
	admin := w.a.Dial().Admin()
	w.every(2*time.Second, func(ctx context.Context) { _, _ = admin.DropPath(ctx, rdsd.PeerFilter{Remote: w.b.Addr}, 0) })
}

// lose sends to where no daemon is: a problem, and an error while the datagram waits.
func (w *world) lose() {
	s := w.bind(w.a, rdsd.GRPC)
	if err := s.Send(w.ctx, netip.MustParseAddrPort("127.0.0.77:4000"), []byte("for nobody")); err != nil {
		w.t.Fatal(err)
	}
}

// congest fills a port that nobody reads; one sender goes on trying, another waits.
func (w *world) congest() {
	reader := w.bind(w.b, rdsd.Rings, rdsd.WithRecvBuffer(8<<10))
	for range 2 {
		s := w.bind(w.a, rdsd.GRPC)
		w.every(50*time.Millisecond, func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			_ = s.Send(ctx, reader.LocalAddr(), make([]byte, 1024))
		})
	}
}

// volume is one of b that a maps over two paths, of which the second is cut while
// requests are under way.
func (w *world) volume(server netip.AddrPort) {
	t := w.t
	if _, err := w.b.Dial().Volumes().Export(w.ctx, rdsd.ExportSpec{Name: "disk", Size: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(addrC, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { relay(w.ctx, c, server.String(), cut) })
		}
	})
	t.Cleanup(func() { l.Close() })
	m, err := w.a.Dial().Volumes().Map(w.ctx, rdsd.MapSpec{Node: w.b.Addr.String(), Name: "disk", Session: "s", Policy: rdsd.PolicyRoundRobin, Paths: []rdsd.PathSpec{
		{Src: w.a.Addr.String(), Dst: server.String()}, {Src: w.a.Addr.String(), Dst: l.Addr().String()}}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		c, err := nbd.DialURI(w.ctx, m.URI)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		b := make([]byte, 64<<10)
		w.every(2*time.Millisecond, func(context.Context) {
			_, _ = c.WriteAt(b, int64(i)<<20)
			_, _ = c.ReadAt(b, int64(i)<<20)
			if i == 0 {
				_ = c.Flush()
			}
		})
	}
	w.every(2*time.Second, func(ctx context.Context) {
		for { // all there are now
			select {
			case cut <- struct{}{}:
			case <-time.After(10 * time.Millisecond):
				return
			case <-ctx.Done():
				return
			}
		}
	})
}

// relay carries one connection until it is told to cut it.
func relay(ctx context.Context, c net.Conn, to string, cut <-chan struct{}) {
	defer c.Close()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: rdsdtest.AddrA.AsSlice()}}
	s, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	var ways sync.WaitGroup
	over := make(chan struct{}, 2)
	for _, p := range [][2]net.Conn{{c, s}, {s, c}} {
		ways.Go(func() { _, _ = io.Copy(p[0], p[1]); over <- struct{}{} })
	}
	select {
	case <-cut:
	case <-over:
	case <-ctx.Done():
	}
	c.Close()
	s.Close()
	ways.Wait()
}

// prometheus starts one that scrapes both daemons each second and has the rules.
func (w *world) prometheus() {
	t := w.t
	dir, err := filepath.Abs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(rulesFile())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: rdsd
    static_configs: [{targets: [%q, %q]}]
`, rules, w.http[0], w.http[1]))
	loopback := netip.MustParseAddr("127.0.0.1")
	w.prom = netip.AddrPortFrom(loopback, uint16(rdsdtest.FreePort(t, loopback))).String()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+w.prom, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if b, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("Prometheus says:\n%s", b)
		}
	})
}

// get reads a page of a daemon or of Prometheus.
func (w *world) get(at, path string) (string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+at+path, nil)
	if err != nil {
		return "", err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// query returns how many series with a number an expression has now: the quantile of
// nothing is a series, too, and shows nobody anything.
func (w *world) query(expr string) (int, error) {
	text, err := w.get(w.prom, "/api/v1/query?query="+url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	var a struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return 0, fmt.Errorf("%w: %.200s", err, text)
	}
	if a.Status != "success" {
		return 0, fmt.Errorf("%s", a.Error)
	}
	n := 0
	for _, r := range a.Data.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

// worldTime is how long Prometheus may take to have seen everything: some twenty seconds
// are enough where nothing else runs.
const worldTime = 90 * time.Second

// TestPrometheus takes every expression of every panel and rule to a real Prometheus: each
// returns something, and what returns nothing while all is well asks for series that exist.
func TestPrometheus(t *testing.T) {
	skipWithoutPrometheus(t)
	if testing.Short() {
		t.Skip("starts daemons and Prometheus")
	}
	w := newWorld(t)
	left := expressions()
	total, begun := len(left), time.Now()
	for end := begun.Add(worldTime); len(left) > 0 && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for expr, where := range left {
			n, err := w.query(expr)
			if err != nil && strings.Contains(err.Error(), "parse error") {
				t.Fatalf("%s: %v in %s", where, err, expr)
			}
			if err == nil && n > 0 {
				delete(left, expr)
			}
		}
	}
	t.Logf("REPORT %d expressions and selectors of panels and rules, %d without a result after %v", total, len(left), time.Since(begun).Round(time.Second))
	for expr, where := range left {
		_, err := w.query(expr)
		t.Errorf("%s: nothing (%v) for %s", where, err, expr)
	}
	w.checkPages()
}

// expressions are all that must return something, with where each stands: whole ones, but
// for alerts, and the selectors in them. The variables of dashboards stand for all.
func expressions() map[string]string {
	m := map[string]string{}
	add := func(where, expr string, whole bool) {
		expr = strings.NewReplacer("$__rate_interval", "10s", "$job", ".+", "$instance", ".+").Replace(expr)
		if whole {
			m[expr] = where
		}
		for _, s := range metricRef.FindAllStringSubmatch(expr, -1) {
			if s[1] != "ALERTS" {
				m[s[1]+s[2]] = where
			}
		}
	}
	for _, d := range Dashboards() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				for _, q := range p.Queries {
					add(d.UID+", "+p.Title, q.PromQL(), true)
				}
			}
		}
	}
	add("restarts", (&Query{Expr: restartsExpr}).PromQL(), false)
	for _, r := range Records() {
		add(r.Name, r.Expr, true)
		m[r.Name] = r.Name
	}
	for _, a := range Alerts() {
		add(a.Name, a.Expr, false)
	}
	return m
}

// checkPages holds what the daemons show against promlint and docs/monitoring.md.
func (w *world) checkPages() {
	known := knownMetrics(w.t)
	for _, at := range w.http {
		page, err := w.get(at, "/metrics")
		if err != nil {
			w.t.Fatal(err)
		}
		promtool(w.t, page, "check", "metrics")
		for _, bound := range bucketBounds() {
			if !strings.Contains(page, `rdsd_queueing_seconds_bucket{le="`+bound+`"}`) {
				w.t.Errorf("no bucket has the bound %s", bound)
			}
		}
		for l := range strings.Lines(page) {
			if name, ok := strings.CutPrefix(l, "# TYPE "); ok {
				name, _, _ = strings.Cut(name, " ")
				library := strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "grpc_server_")
				if !known[name] && !library {
					w.t.Errorf("docs/monitoring.md does not list %s", name)
				}
			}
		}
	}
}
