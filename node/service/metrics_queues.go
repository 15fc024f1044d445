package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/datagram"
)

// queueCollector reads paths, sockets and congested ports at scrape time. Of what
// peers and applications can make many of, it shows those that matter most, and sums of
// all.
type queueCollector struct {
	read  func(*datagram.Figures)
	guard *guard.Guard

	paths                                      *prometheus.Desc
	peerPaths, peerCongested, peerRTT          *prometheus.Desc
	congested, portsOmitted                    *prometheus.Desc
	portAge, portQueued, portWaiting           *prometheus.Desc
	portBlocked, portReader, portFilled        *prometheus.Desc
	received, receivedN, sending, undecided    *prometheus.Desc
	awaiting                                   *prometheus.Desc
	socketReceived, socketSend, socketsOmitted *prometheus.Desc
}

func newQueueCollector(read func(*datagram.Figures), g *guard.Guard) *queueCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rdsd_"+name, help, labels, nil)
	}
	peer := []string{"local", "peer"}
	port := []string{"side", "address", "port"}
	socket := []string{"address", "port", "uid"}
	return &queueCollector{
		read: read, guard: g,
		paths:         d("paths", "Lanes to peers, by state.", "state"),
		peerPaths:     d("peer_paths_up", "Lanes to the peer that are up.", peer...),
		peerCongested: d("peer_congested_ports", "Ports of the peer that are congested.", peer...),
		peerRTT:       d("peer_round_trip_seconds", "Smoothed round trip to the peer; not there before it was measured.", peer...),

		congested:    d("congested_ports", "Ports that are congested: those of this node (side reader), and those of its peers (side sender).", "side"),
		portsOmitted: d("metrics_ports_omitted", "Congested ports without series of their own, because others are congested for longer or hold up sockets here."),
		portAge:      d("congested_port_age_seconds", "For how long the port has been congested; a peer's that concerns no socket here at least so long.", port...),
		portQueued:   d("congested_port_queued_bytes", "Unread payload in the receive queue of the port; of a peer's port where its daemon said so.", port...),
		portWaiting:  d("congested_port_waiting_sockets", "Sockets of this node that wait to send to the port.", port...),
		portBlocked:  d("congested_port_blocked_sends", "Sends of this node refused or made to wait since the port became congested; 0 when the sockets they were of have gone.", port...),
		portReader:   d("congested_port_reader", "Always 1; the labels say who should read the port.", append(slices.Clone(port), "uid", "pid")...),
		portFilled:   d("congested_port_filled_bytes", "Unread payload of one sender in the receive queue of the port, of those with most; source others: the rest.", append(slices.Clone(port), "source")...),

		received:  d("receive_queue_bytes", "Unread payload in the receive queues of all sockets."),
		receivedN: d("receive_queue_datagrams", "Unread datagrams in the receive queues of all sockets."),
		sending:   d("send_queue_bytes", "Payload in the send buffers of all sockets: accepted, and not acknowledged by its destination."),
		undecided: d("undecided_datagrams", "Datagrams of all sockets that were accepted and have no outcome yet."),
		awaiting:  d("waiting_sends", "Sends of all sockets that wait to be accepted."),

		socketReceived: d("socket_receive_queue_bytes", "Unread payload of one of the sockets with most queued.", socket...),
		socketSend:     d("socket_send_queue_bytes", "Send buffer in use of one of the sockets with most queued.", socket...),
		socketsOmitted: d("metrics_sockets_omitted", "Sockets without series of their own, because others have more queued or they have nothing."),
	}
}

// Describe implements prometheus.Collector.
func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.paths, c.peerPaths, c.peerCongested, c.peerRTT, c.congested, c.portsOmitted, c.portAge, c.portQueued,
		c.portWaiting, c.portBlocked, c.portReader, c.portFilled, c.received, c.receivedN, c.sending, c.undecided, c.awaiting,
		c.socketReceived, c.socketSend, c.socketsOmitted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	defer c.guard.Recover(guard.Page, nil) // the library collects in goroutines of its own
	var f datagram.Figures
	c.read(&f)
	p := &page{ch: ch}
	for state, n := range f.Lanes {
		p.gauge(c.paths, float64(n), state)
	}
	c.collectPeers(p, f.Peers)
	total := 0
	for side, n := range f.Congested {
		p.gauge(c.congested, float64(n), side)
		total += n
	}
	ports := mergePorts(f.Ports)
	// Ports change while they are counted.
	p.gauge(c.portsOmitted, float64(max(total-len(ports), 0)))
	for i := range ports {
		c.collectPort(p, &ports[i])
	}
	p.gauge(c.received, float64(f.Sums.RecvQueued))
	p.gauge(c.receivedN, float64(f.Sums.RecvDatagrams))
	p.gauge(c.sending, float64(f.Sums.SendUsed))
	p.gauge(c.undecided, float64(f.Sums.Undecided))
	p.gauge(c.awaiting, float64(f.Sums.Awaiting))
	for _, s := range f.Sockets {
		addr, port := endpointLabels(s.Addr)
		uid := strconv.Itoa(int(s.UID))
		p.gauge(c.socketReceived, float64(s.RecvQueued), addr, port, uid)
		p.gauge(c.socketSend, float64(s.SendUsed), addr, port, uid)
	}
	p.gauge(c.socketsOmitted, float64(f.Bound-len(f.Sockets)))
}

// collectPeers shows the peers with most congested ports, then those with most paths: what
// has neither is not missed.
func (c *queueCollector) collectPeers(p *page, l []datagram.PeerFigures) {
	if len(l) > maxPeersInMetrics {
		slices.SortStableFunc(l, func(a, b datagram.PeerFigures) int {
			if a.CongestedPorts != b.CongestedPorts {
				return cmp.Compare(b.CongestedPorts, a.CongestedPorts)
			}
			return cmp.Compare(b.LanesUp, a.LanesUp)
		})
		l = l[:maxPeersInMetrics]
	}
	for i := range l {
		local, remote := l[i].Local.String(), l[i].Remote.String()
		p.gauge(c.peerPaths, float64(l[i].LanesUp), local, remote)
		p.gauge(c.peerCongested, float64(l[i].CongestedPorts), local, remote)
		if l[i].RoundTrip > 0 {
			p.gauge(c.peerRTT, l[i].RoundTrip.Seconds(), local, remote)
		}
	}
}

// mergePorts makes one of those that are the same port: of a peer that is linked with
// several addresses of this node, each has its own news.
func mergePorts(list []datagram.PortFigures) []datagram.PortFigures {
	type port struct {
		side     string
		endpoint netip.AddrPort
	}
	var merged []datagram.PortFigures
	at := map[port]int{}
	for _, f := range list {
		key := port{f.Side, f.Endpoint}
		k, there := at[key]
		if !there {
			at[key] = len(merged)
			merged = append(merged, f)
			continue
		}
		m := &merged[k]
		m.Age = max(m.Age, f.Age)
		m.Blocked += f.Blocked
		m.Waiting += f.Waiting
		if f.Known && !m.Known {
			m.Known, m.PortReader = true, f.PortReader
		}
	}
	return merged
}

func (c *queueCollector) collectPort(p *page, f *datagram.PortFigures) {
	addr, port := endpointLabels(f.Endpoint)
	p.gauge(c.portAge, f.Age.Seconds(), f.Side, addr, port)
	p.gauge(c.portBlocked, float64(f.Blocked), f.Side, addr, port)
	p.gauge(c.portWaiting, float64(f.Waiting), f.Side, addr, port)
	if !f.Known {
		return
	}
	p.gauge(c.portQueued, float64(f.QueuedBytes), f.Side, addr, port)
	p.gauge(c.portReader, 1, f.Side, addr, port, strconv.Itoa(int(f.UID)), strconv.Itoa(int(f.PID)))
	rest := float64(f.QueuedBytes)
	var filled sums // a peer may name a sender twice
	for _, k := range f.Fillers {
		filled.add(float64(k.Bytes), []string{f.Side, addr, port, k.Source.String()})
		rest -= float64(k.Bytes)
	}
	filled.add(max(rest, 0), []string{f.Side, addr, port, "others"})
	p.sums(c.portFilled, prometheus.GaugeValue, &filled)
}

func endpointLabels(a netip.AddrPort) (addr, port string) {
	return a.Addr().String(), strconv.Itoa(int(a.Port()))
}

// readFigures looks at paths, sockets and ports; at nothing before there is a core.
func (f *Front) readFigures(into *datagram.Figures) {
	if f.deps.Host != nil {
		f.deps.Host.Figures(into)
	}
}
