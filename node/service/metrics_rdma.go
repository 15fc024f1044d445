package service

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
)

// RDMADevice is what there is to be told of a device for volumes over RDMA.
type RDMADevice struct {
	Addr       netip.Addr
	MTU        int    // in bytes, of connections that are made now
	QueuePairs int    // connections, those that are ending included
	Keys       int    // that open memory to peers
	Overrun    uint64 // packets that found the receive buffer full
	Counters   []RDMACounter
}

// RDMACounter is one number of a device, which only grows.
type RDMACounter struct {
	Name  string
	Value uint64
}

// rdmaCollector reads the devices at scrape time.
type rdmaCollector struct {
	read func() []RDMADevice // nil: there never are any

	mtu, queuePairs, keys, overrun, events *prometheus.Desc
}

func newRDMACollector(read func() []RDMADevice) *rdmaCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rdsd_rdma_"+name, help, append([]string{"address"}, labels...), nil)
	}
	return &rdmaCollector{
		read:       read,
		mtu:        d("mtu_bytes", "What a packet of a connection for volumes over RDMA carries at most, if it is made now."),
		queuePairs: d("queue_pairs", "Connections of a device for volumes over RDMA, those that are ending included."),
		keys:       d("keys", "Keys by which peers of a device may write memory of this node: one for each chunk of a path that is served, and one for each read that is under way."),
		overrun:    d("receive_overrun_total", "packets that found the receive buffer of a device full: raise net.core.rmem_max"),
		events:     d("events_total", "counters of a device for volumes over RDMA, under the names that rdma_rxe has for them, and of its own: drop_* are packets that were not taken, cm_* messages that make and end connections", "name"),
	}
}

// Describe implements prometheus.Collector.
func (c *rdmaCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.mtu, c.queuePairs, c.keys, c.overrun, c.events} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *rdmaCollector) Collect(ch chan<- prometheus.Metric) {
	if c.read == nil {
		return
	}
	p := &page{ch: ch}
	for _, d := range c.read() {
		addr := d.Addr.String()
		p.gauge(c.mtu, float64(d.MTU), addr)
		p.gauge(c.queuePairs, float64(d.QueuePairs), addr)
		p.gauge(c.keys, float64(d.Keys), addr)
		p.put(c.overrun, prometheus.CounterValue, float64(d.Overrun), []string{addr})
		for _, n := range d.Counters {
			p.put(c.events, prometheus.CounterValue, float64(n.Value), []string{addr, n.Name})
		}
	}
}
