package service

import (
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/datagram"
)

// maxPeersInMetrics bounds the series one scrape can have: peers beyond it (the
// quietest, after those that datagrams wait for in vain) are left out and counted in
// rdsd_metrics_peers_omitted.
const maxPeersInMetrics = 256

// snapshot is what the node shows of itself: what its datagrams are doing, and the
// front ends' own limits.
type snapshot struct {
	datagram.Snapshot
	holders []base.Budget // who holds most memory
	sockets int
	clients int
	rings   int    // sockets with rings
	ringB   uint64 // memory shared with clients, in use
}

// collector reads everything at scrape time; the data path knows nothing of it.
type collector struct {
	read  func(*snapshot)
	front *base.Counters
	guard *guard.Guard

	core, perPeer, own          []*prometheus.Desc // core and perPeer in the order of stats.Fields
	queueing, rtt               *prometheus.Desc
	peerUp, peerQueued, omitted *prometheus.Desc
	peerWaiting                 *prometheus.Desc
	peers, peersUp              *prometheus.Desc
	sockets, clients            *prometheus.Desc
	rings, ringB                *prometheus.Desc
	refusedLinks                *prometheus.Desc
	used, limit, refused        *prometheus.Desc
	holder                      *prometheus.Desc
	panics                      *prometheus.Desc
}

func newCollector(read func(*snapshot), front *base.Counters, g *guard.Guard) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	c := &collector{read: read, front: front, guard: g,
		queueing:     d("rdsd_queueing_seconds", "Time datagrams waited in the daemon before their first byte left."),
		rtt:          d("rdsd_round_trip_seconds", "Time from a handshake or heartbeat to its answer."),
		peerUp:       d("rdsd_peer_up", "1 while a lane to the peer is up.", "local", "peer"),
		peerQueued:   d("rdsd_peer_queued_bytes", "Payload queued for the peer or not yet acknowledged by it.", "local", "peer"),
		peerWaiting:  d("rdsd_peer_waiting_datagrams", "Datagrams for the peer that it has not acknowledged, or that wait to be sent or accepted, also before a congested port.", "local", "peer"),
		omitted:      d("rdsd_metrics_peers_omitted", "Peers left out of this page because there are too many."),
		peers:        d("rdsd_peers", "Peers known."),
		peersUp:      d("rdsd_peers_up", "Peers with a lane that is up."),
		sockets:      d("rdsd_sockets", "Sockets open."),
		clients:      d("rdsd_clients", "Client connections open."),
		rings:        d("rdsd_ring_sockets", "Sockets open that have rings."),
		ringB:        d("rdsd_ring_bytes", "Memory shared with clients that is in use."),
		refusedLinks: d("rdsd_connections_refused_total", "Connections of peers refused, for any reason."),
		used:         d("rdsd_budget_used", "How much of a configured limit is used.", "budget"),
		limit:        d("rdsd_budget_limit", "The configured limit.", "budget"),
		panics:       d("rdsd_panics_total", "Panics that ended one call, socket, link, ... alone. Any is a bug; the log has the stack.", "what"),
		holder:       d("rdsd_memory_holder_bytes", "Memory charged to one of those who hold most of it.", "holder"),
		refused:      d("rdsd_budget_refused_total", "How often a limit refused something.", "budget"),
	}
	for _, f := range stats.Fields {
		if f.Kernel() { // it is always 0; rds-info prints it, as on a kernel
			c.core, c.perPeer = append(c.core, nil), append(c.perPeer, nil)
			continue
		}
		prefix := "rds_"
		if f.Own {
			prefix = "rdsd_"
		}
		c.core = append(c.core, d(prefix+f.Name+"_total", f.Help))
		c.perPeer = append(c.perPeer, d(prefix+"peer_"+f.Name+"_total", "of one peer: "+f.Help, "local", "peer"))
	}
	for _, k := range base.CounterTable.Descs() {
		c.own = append(c.own, d("rdsd_"+k.Name+"_total", k.Help))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, list := range [][]*prometheus.Desc{c.core, c.perPeer, c.own,
		{c.queueing, c.rtt, c.peerUp, c.peerQueued, c.peerWaiting, c.omitted, c.peers, c.peersUp, c.sockets, c.clients, c.rings, c.ringB, c.refusedLinks, c.used, c.limit, c.refused, c.holder, c.panics}} {
		for _, d := range list {
			if d != nil {
				ch <- d
			}
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	defer c.guard.Recover(guard.Page, nil) // the library collects in goroutines of its own
	guard.Point("collect")
	var s snapshot
	c.read(&s)
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i, v := range s.Counters.Values(nil) {
		if c.core[i] != nil {
			count(c.core[i], v)
		}
	}
	for i, v := range base.CounterTable.Read(nil, c.front) {
		count(c.own[i], v)
	}
	ch <- &histMetric{c.queueing, &s.Queueing, nil}
	ch <- &histMetric{c.rtt, &s.Rtt, nil}
	peersUp := 0
	for i := range s.Peers {
		if s.Peers[i].Up {
			peersUp++
		}
	}
	shown := foremost(s.Peers, maxPeersInMetrics, unreached, traffic)
	var values []uint64
	for _, p := range shown {
		local, remote, up := p.Local.String(), p.Remote.String(), 0.0
		if p.Up {
			up = 1
		}
		gauge(c.peerUp, up, local, remote)
		gauge(c.peerQueued, float64(p.QueuedBytes), local, remote)
		gauge(c.peerWaiting, float64(p.Waiting), local, remote)
		values = p.Counters.Values(values[:0])
		for j, v := range values {
			if v != 0 && c.perPeer[j] != nil { // some eighty series for each peer would be mostly zeros
				count(c.perPeer[j], v, local, remote)
			}
		}
	}
	gauge(c.omitted, float64(len(s.Peers)-len(shown)))
	gauge(c.peers, float64(len(s.Peers)))
	gauge(c.peersUp, float64(peersUp))
	gauge(c.sockets, float64(s.sockets))
	gauge(c.clients, float64(s.clients))
	gauge(c.rings, float64(s.rings))
	gauge(c.ringB, float64(s.ringB))
	count(c.refusedLinks, s.RefusedLinks)
	for w := range guard.Step { // that of a step ends the process, and its counters
		count(c.panics, c.guard.Count(w), w.String())
	}
	for _, b := range s.Budgets {
		gauge(c.used, float64(b.Used), b.Name)
		gauge(c.limit, float64(b.Limit), b.Name)
		count(c.refused, b.Refused, b.Name)
	}
	for _, b := range s.holders {
		gauge(c.holder, float64(b.Used), strings.TrimPrefix(b.Name, holderName))
	}
}

// newRegistry holds everything one node exposes.
func newRegistry(cs ...prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rdsd_build_info", Help: "Always 1; the labels say which rdsd this is.",
		ConstLabels: prometheus.Labels{"version": base.Version(), "go_version": goVersion()}}, func() float64 { return 1 })
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	r.MustRegister(cs...)
	return r
}

func goVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		return b.GoVersion
	}
	return "unknown"
}
