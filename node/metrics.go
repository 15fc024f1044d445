package node

import (
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rdsd/rdsd/internal/counters"
)

// maxPeersInMetrics bounds the series one scrape can have: peers beyond it
// (the quietest) are left out and counted in rdsd_metrics_peers_omitted.
const maxPeersInMetrics = 256

// stats is one consistent look at a node, taken when somebody asks: a scrape
// or the Admin service.
type stats struct {
	kernel  []uint64 // in the order of counters.KernelTable
	extra   []uint64 // in the order of the collector's extra table
	budgets []budget
	peers   []peerStats
	peersUp int
	sockets int
}

// budget is one configured limit and what is used of it (M1 to M4).
type budget struct {
	name                 string
	used, limit, refused uint64
}

// peerStats are the counters of one peer.
type peerStats struct {
	local, remote string
	up            bool
	kernel        []uint64 // in the order of counters.KernelTable
	queuedBytes   uint64   // not yet sent, and sent but not acknowledged
}

// histograms are observed by the core's shell, never per datagram.
type histograms struct {
	roundTrip prometheus.Histogram // ping or heartbeat to its answer
	queueing  prometheus.Histogram // oldest datagram of a write: accepted to handed to the kernel
}

func newHistograms() *histograms {
	make := func(name, help string, first float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:                            name,
			Help:                            help,
			Buckets:                         prometheus.ExponentialBuckets(first, 4, 10),
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  160,
			NativeHistogramMinResetDuration: time.Hour,
		})
	}
	return &histograms{
		roundTrip: make("rdsd_round_trip_seconds", "Time from a ping or heartbeat to its answer.", 20e-6),
		queueing:  make("rdsd_queueing_seconds", "Time the oldest datagram of a write had waited since it was accepted.", 2e-6),
	}
}

// collector reads everything at scrape time; the data path knows nothing of it.
type collector struct {
	read    func(*stats)
	front   *nodeCounters
	clients func() int

	kernel, perPeer, extra, own []*prometheus.Desc
	peerUp, peerQueued, omitted *prometheus.Desc
	peers, peersUp              *prometheus.Desc
	sockets, clientsDesc        *prometheus.Desc
	used, limit, refused        *prometheus.Desc
}

func newCollector(read func(*stats), extra []counters.Desc, front *nodeCounters, clients func() int) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	c := &collector{read: read, front: front, clients: clients,
		peerUp:      d("rdsd_peer_up", "1 while a path to the peer is up.", "local", "peer"),
		peerQueued:  d("rdsd_peer_queued_bytes", "Payload queued for the peer or not yet acknowledged by it.", "local", "peer"),
		omitted:     d("rdsd_metrics_peers_omitted", "Peers left out of this page because there are too many."),
		peers:       d("rdsd_peers", "Peers known."),
		peersUp:     d("rdsd_peers_up", "Peers with a path that is up."),
		sockets:     d("rdsd_sockets", "Sockets open."),
		clientsDesc: d("rdsd_clients", "Client connections open."),
		used:        d("rdsd_budget_used", "How much of a configured limit is used.", "budget"),
		limit:       d("rdsd_budget_limit", "The configured limit.", "budget"),
		refused:     d("rdsd_budget_refused_total", "How often a limit refused something.", "budget"),
	}
	for _, k := range counters.KernelTable.Descs() {
		c.kernel = append(c.kernel, d("rds_"+k.Name+"_total", k.Help))
		c.perPeer = append(c.perPeer, d("rds_peer_"+k.Name+"_total", "Of one peer: "+k.Help, "local", "peer"))
	}
	for _, k := range extra {
		c.extra = append(c.extra, d("rdsd_"+k.Name+"_total", k.Help))
	}
	for _, k := range nodeCounterTable.Descs() {
		c.own = append(c.own, d("rdsd_"+k.Name+"_total", k.Help))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, list := range [][]*prometheus.Desc{c.kernel, c.perPeer, c.extra, c.own,
		{c.peerUp, c.peerQueued, c.omitted, c.peers, c.peersUp, c.sockets, c.clientsDesc, c.used, c.limit, c.refused}} {
		for _, d := range list {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	var s stats
	c.read(&s)
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i, v := range s.kernel {
		count(c.kernel[i], v)
	}
	for i, v := range s.extra {
		count(c.extra[i], v)
	}
	for i, v := range nodeCounterTable.Read(nil, c.front) {
		count(c.own[i], v)
	}
	shown := busiest(s.peers, maxPeersInMetrics)
	for i := range shown {
		p := &shown[i]
		up := 0.0
		if p.up {
			up = 1
		}
		gauge(c.peerUp, up, p.local, p.remote)
		gauge(c.peerQueued, float64(p.queuedBytes), p.local, p.remote)
		for j, v := range p.kernel {
			if v != 0 { // 41 series for each peer would be mostly zeros
				count(c.perPeer[j], v, p.local, p.remote)
			}
		}
	}
	gauge(c.omitted, float64(len(s.peers)-len(shown)))
	gauge(c.peers, float64(len(s.peers)))
	gauge(c.peersUp, float64(s.peersUp))
	gauge(c.sockets, float64(s.sockets))
	gauge(c.clientsDesc, float64(c.clients()))
	for _, b := range s.budgets {
		gauge(c.used, float64(b.used), b.name)
		gauge(c.limit, float64(b.limit), b.name)
		count(c.refused, b.refused, b.name)
	}
}

// newRegistry holds everything one node exposes.
func newRegistry(cs ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rdsd_build_info", Help: "Always 1; the labels say which rdsd this is.",
		ConstLabels: prometheus.Labels{"version": Version(), "go_version": goVersion()}}, func() float64 { return 1 })
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.MustRegister(cs...)
	return r
}

// version may be set by the linker: -X github.com/rdsd/rdsd/node.version=1.2.3
var version = ""

// Version is the version of this program.
func Version() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return strings.TrimPrefix(b.Main.Version, "v")
	}
	return "0.1.0-dev"
}

func goVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		return b.GoVersion
	}
	return "unknown"
}
