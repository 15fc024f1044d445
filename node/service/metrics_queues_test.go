package service

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/health"
	"github.com/rdsd/rdsd/rds"
)

func busyFigures(f *datagram.Figures) {
	reader, source := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:5000")
	*f = datagram.Figures{
		Lanes:     map[string]int{"Up": 3, "Error": 1},
		Peers:     []datagram.PeerFigures{{Local: reader.Addr(), Remote: source.Addr(), LanesUp: 3, CongestedPorts: 2, RoundTrip: time.Millisecond}},
		Congested: map[string]int{datagram.SideReader: 1, datagram.SideSender: 2},
		Ports: []datagram.PortFigures{
			{Side: datagram.SideReader, Endpoint: reader, Age: 2 * time.Second, Blocked: 3, Waiting: 1, Known: true,
				PortReader: datagram.PortReader{UID: 7, PID: 77, QueuedBytes: 1000, Fillers: []rds.Culprit{{Source: source, N: 2, Bytes: 600}}}},
			{Side: datagram.SideSender, Endpoint: source, Age: time.Second},
		},
		Sockets: []datagram.SocketFigures{{Addr: reader, UID: 7, RecvQueued: 1000, SendUsed: 5}},
		Bound:   4,
		Sums:    datagram.SocketSums{RecvQueued: 1000, SendUsed: 5, RecvDatagrams: 9, Undecided: 2, Awaiting: 1},
	}
}

func TestQueueMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newQueueCollector(busyFigures, nil))
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP rdsd_congested_port_age_seconds For how long the port has been congested; a peer's that concerns no socket here at least so long.
# TYPE rdsd_congested_port_age_seconds gauge
rdsd_congested_port_age_seconds{address="10.0.0.1",port="4000",side="reader"} 2
rdsd_congested_port_age_seconds{address="10.0.0.2",port="5000",side="sender"} 1
# HELP rdsd_congested_port_filled_bytes Unread payload of one sender in the receive queue of the port, of those with most; source others: the rest.
# TYPE rdsd_congested_port_filled_bytes gauge
rdsd_congested_port_filled_bytes{address="10.0.0.1",port="4000",side="reader",source="10.0.0.2:5000"} 600
rdsd_congested_port_filled_bytes{address="10.0.0.1",port="4000",side="reader",source="others"} 400
# HELP rdsd_congested_port_reader Always 1; the labels say who should read the port.
# TYPE rdsd_congested_port_reader gauge
rdsd_congested_port_reader{address="10.0.0.1",pid="77",port="4000",side="reader",uid="7"} 1
# HELP rdsd_congested_ports Ports that are congested: those of this node (side reader), and those of its peers (side sender).
# TYPE rdsd_congested_ports gauge
rdsd_congested_ports{side="reader"} 1
rdsd_congested_ports{side="sender"} 2
# HELP rdsd_metrics_ports_omitted Congested ports without series of their own, because others are congested for longer or hold up sockets here.
# TYPE rdsd_metrics_ports_omitted gauge
rdsd_metrics_ports_omitted 1
# HELP rdsd_metrics_sockets_omitted Sockets without series of their own, because others have more queued or they have nothing.
# TYPE rdsd_metrics_sockets_omitted gauge
rdsd_metrics_sockets_omitted 3
# HELP rdsd_peer_round_trip_seconds Smoothed round trip to the peer; not there before it was measured.
# TYPE rdsd_peer_round_trip_seconds gauge
rdsd_peer_round_trip_seconds{local="10.0.0.1",peer="10.0.0.2"} 0.001
`
	err = testutil.GatherAndCompare(r, strings.NewReader(want), "rdsd_congested_port_age_seconds", "rdsd_congested_port_filled_bytes",
		"rdsd_congested_port_reader", "rdsd_congested_ports", "rdsd_metrics_ports_omitted", "rdsd_metrics_sockets_omitted", "rdsd_peer_round_trip_seconds")
	if err != nil {
		t.Error(err)
	}
}

// Bounds of a scrape of a node with a thousand peers, of which every counter has moved,
// five thousand sockets and more congested ports than it may list. The time is for a
// machine that does other things besides; docs/performance-log.md has what it takes alone.
const (
	scrapeSeries = 256*(stats64+6) + 1500
	scrapeTime   = 2 * time.Second
	stats64      = 64 // counters a peer may have, those of kernels alone left out
)

func TestScrapeOfManyIsBounded(t *testing.T) {
	cfg := clienttest.Config(t)
	cfg.Limits.MaxPeers, cfg.Limits.MaxSockets, cfg.Limits.MaxSocketsPerUID = 2000, 6000, 6000
	n := newWorld(t, cfg, world{real: true})
	crowd(t, n.hosts.Locals()[0])
	time.Sleep(health.Grace) // a port that was congested for less is no problem, and no work
	r := newRegistry(newCollector(func(s *snapshot) {
		n.services.snapshot(s)
		for i := range s.Peers {
			c := reflect.ValueOf(&s.Peers[i].Counters).Elem()
			for f := range c.NumField() {
				c.Field(f).SetUint(1)
			}
		}
	}, n.deps.Count, n.deps.Guard), newQueueCollector(n.services.readFigures, n.deps.Guard), newProblemCollector(n.services.readProblems, n.deps.Guard), newVolumeCollector(n.services.readVolumes, n.deps.Guard))
	h := promhttp.HandlerFor(r, promhttp.HandlerOpts{DisableCompression: true})
	page, best := "", time.Hour
	for range 5 {
		w := httptest.NewRecorder()
		begun := time.Now()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		best = min(best, time.Since(begun))
		if page = w.Body.String(); w.Code != 200 {
			t.Fatalf("%d %s", w.Code, page)
		}
	}
	count := 0
	for l := range strings.Lines(page) {
		if !strings.HasPrefix(l, "#") {
			count++
		}
	}
	t.Logf("REPORT a scrape with 1,000 peers and 5,000 sockets takes %v: %d series, %d KiB", best.Round(time.Millisecond), count, len(page)>>10)
	if count > scrapeSeries || count < scrapeSeries/2 {
		t.Errorf("%d series, want at most %d, and what a crowd has", count, scrapeSeries)
	}
	if best > scrapeTime {
		t.Errorf("a scrape takes %v", best)
	}
}

// crowd has a thousand peers, a hundred of them with more congested ports than are
// listed, and five thousand sockets, most of them congested.
func crowd(t *testing.T, h *datagram.Local) {
	t.Helper()
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	e, now := h.Lock()
	defer h.Unlock()
	sender, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		k, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 1024, UID: uint32(i % 100)})
		if err != nil {
			t.Fatal(fmt.Errorf("socket %d: %w", i, err))
		}
		for range 4 {
			_ = sender.Send(now, k.Addr(), make([]byte, 512), 1, false) // until it is congested
		}
	}
	for i := range 1000 {
		pe, err := e.Peer(netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)}))
		if err != nil {
			t.Fatal(fmt.Errorf("peer %d: %w", i, err))
		}
		if i < 100 {
			pe.CongestionMap(now, full)
		}
	}
}

// TestOnePortWithTwoAddresses: a port of a peer that is linked with two addresses of this
// node is one port, whatever the peer says of it, and the page has all the rest.
func TestOnePortWithTwoAddresses(t *testing.T) {
	port, source := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort("10.0.0.1:4000")
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newQueueCollector(func(f *datagram.Figures) {
		busyFigures(f)
		f.Congested[datagram.SideSender] = 1
		f.Ports = []datagram.PortFigures{
			{Side: datagram.SideSender, Endpoint: port, Age: 3 * time.Second, Blocked: 1, Waiting: 2},
			{Side: datagram.SideSender, Endpoint: port, Age: time.Second, Blocked: 4, Waiting: 1, Known: true,
				PortReader: datagram.PortReader{UID: 7, PID: 77, QueuedBytes: 1000, Fillers: []rds.Culprit{{Source: source, Bytes: 300}, {Source: source, Bytes: 200}}}},
			{Side: datagram.SideReader, Endpoint: port},
		}
	}, nil))
	want := `
# HELP rdsd_congested_port_age_seconds For how long the port has been congested; a peer's that concerns no socket here at least so long.
# TYPE rdsd_congested_port_age_seconds gauge
rdsd_congested_port_age_seconds{address="10.0.0.2",port="5000",side="reader"} 0
rdsd_congested_port_age_seconds{address="10.0.0.2",port="5000",side="sender"} 3
# HELP rdsd_congested_port_blocked_sends Sends of this node refused or made to wait since the port became congested; 0 when the sockets they were of have gone.
# TYPE rdsd_congested_port_blocked_sends gauge
rdsd_congested_port_blocked_sends{address="10.0.0.2",port="5000",side="reader"} 0
rdsd_congested_port_blocked_sends{address="10.0.0.2",port="5000",side="sender"} 5
# HELP rdsd_congested_port_filled_bytes Unread payload of one sender in the receive queue of the port, of those with most; source others: the rest.
# TYPE rdsd_congested_port_filled_bytes gauge
rdsd_congested_port_filled_bytes{address="10.0.0.2",port="5000",side="sender",source="10.0.0.1:4000"} 500
rdsd_congested_port_filled_bytes{address="10.0.0.2",port="5000",side="sender",source="others"} 500
# HELP rdsd_congested_port_waiting_sockets Sockets of this node that wait to send to the port.
# TYPE rdsd_congested_port_waiting_sockets gauge
rdsd_congested_port_waiting_sockets{address="10.0.0.2",port="5000",side="reader"} 0
rdsd_congested_port_waiting_sockets{address="10.0.0.2",port="5000",side="sender"} 3
# HELP rdsd_metrics_ports_omitted Congested ports without series of their own, because others are congested for longer or hold up sockets here.
# TYPE rdsd_metrics_ports_omitted gauge
rdsd_metrics_ports_omitted 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "rdsd_congested_port_age_seconds", "rdsd_congested_port_blocked_sends",
		"rdsd_congested_port_filled_bytes", "rdsd_congested_port_waiting_sockets", "rdsd_metrics_ports_omitted"); err != nil {
		t.Error(err)
	}
}
