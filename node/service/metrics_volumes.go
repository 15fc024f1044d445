package service

import (
	"cmp"
	"iter"
	"net"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/volume"
)

// maxVolumesInMetrics bounds exports, mappings, sessions and paths each: those
// beyond it (the quietest, after what is down) are left out and counted in
// rdsd_metrics_volumes_omitted.
const maxVolumesInMetrics = 256

// pathConnected is the state of a path over which requests go.
const pathConnected = "connected"

// volumeSnapshot is one look at the volumes.
type volumeSnapshot struct {
	exports  []counted[volume.ExportInfo]
	gone     []counted[volume.ExportInfo] // only names and counters
	mappings []counted[volume.MappingInfo]
	sessions []volume.SessionInfo
	paths    []volume.PathInfo
}

// counted is an export or a mapping with its counters.
type counted[T any] struct {
	info T
	ops  [blk.NumOps]blk.OpCounts
}

// traffic orders volumes: requests completed.
func (c *counted[T]) traffic() (n uint64) {
	for i := range c.ops {
		n += c.ops[i].Completed
	}
	return n
}

// readVolumes looks at the volumes; nothing without a host.
func (f *Front) readVolumes(s *volumeSnapshot) {
	h := f.deps.Volumes()
	if h == nil {
		return
	}
	for _, e := range h.CountedExports() {
		to := &s.exports
		if e.Gone {
			to = &s.gone
		}
		*to = append(*to, counted[volume.ExportInfo]{e.ExportInfo, e.Counts})
	}
	for _, m := range h.Mappings() {
		c, _ := h.MappingCounts(m.ID)
		s.mappings = append(s.mappings, counted[volume.MappingInfo]{m, c})
	}
	s.sessions, s.paths = h.Sessions(), h.Paths()
}

// opDescs are the metrics of requests, of exports or of mappings.
type opDescs struct{ latency, errors, bytes, inFlight *prometheus.Desc }

// volumeCollector reads the volumes at scrape time.
type volumeCollector struct {
	read  func(*volumeSnapshot)
	guard *guard.Guard

	exports, mappings, sessions, omitted                            *prometheus.Desc
	exportOpen, exportFailed, exportSize, exportUsers, exportOldest *prometheus.Desc
	mappingOpen, mappingSize, mappingUsers, mappingOldest           *prometheus.Desc
	exportOps, mappingOps                                           opDescs
	sessionUp, sessionInFlight, sessionWaiting, sessionMemory       *prometheus.Desc
	sessionUnfenced, sessionTimeouts                                *prometheus.Desc
	pathUp, pathLatency, pathInFlight                               *prometheus.Desc
	pathCounters                                                    []*prometheus.Desc // in the order of pathCounters
}

// pathCounters are the statistics of a path that only grow.
var pathCounters = []struct {
	name, help string
	read       func(*volume.PathInfo) uint64
}{
	{"reads", "reads that went over the path", func(p *volume.PathInfo) uint64 { return p.Reads }},
	{"read_bytes", "bytes read over the path", func(p *volume.PathInfo) uint64 { return p.ReadBytes }},
	{"writes", "writes and other requests that went over the path", func(p *volume.PathInfo) uint64 { return p.Writes }},
	{"write_bytes", "bytes written over the path", func(p *volume.PathInfo) uint64 { return p.WriteBytes }},
	{"failovers", "requests the path took over from others", func(p *volume.PathInfo) uint64 { return p.Failovers }},
	{"reconnects", "reconnects that succeeded", func(p *volume.PathInfo) uint64 { return p.ReconnectsOK }},
	{"reconnects_failed", "reconnects that failed", func(p *volume.PathInfo) uint64 { return p.ReconnectsFailed }},
}

func newVolumeCollector(read func(*volumeSnapshot), g *guard.Guard) *volumeCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("rdsd_"+name, help, labels, nil)
	}
	ops := func(prefix, of string, labels ...string) opDescs {
		labels = append(labels, "op")
		return opDescs{
			latency:  d(prefix+"_request_seconds", "Time requests "+of+" took, those that failed included.", labels...),
			errors:   d(prefix+"_request_errors_total", "requests "+of+" that failed", labels...),
			bytes:    d(prefix+"_bytes_total", "bytes of requests "+of+" that succeeded", labels...),
			inFlight: d(prefix+"_requests_in_flight", "Requests "+of+" that have not completed.", labels...),
		}
	}
	mapping := []string{"mapping", "node", "volume"}
	session := []string{"session", "role", "peer"}
	path := []string{"session", "role", "source", "destination", "transport"}
	c := &volumeCollector{
		read: read, guard: g,
		exports:  d("exports", "Exports, those opened below roots included."),
		mappings: d("mappings", "Mapped volumes."),
		sessions: d("volume_sessions", "Sessions for volumes.", "role"),
		omitted:  d("metrics_volumes_omitted", "Exports, mappings, sessions and paths left out of this page because there are too many."),

		exportOpen:   d("export_open", "1 while the store of the export is open: that of a file or block device while a session has it open.", "export"),
		exportFailed: d("export_failed", "1 while the store of the export could not be opened.", "export"),
		exportSize:   d("export_size_bytes", "Size of the export, as it was when its store was looked at last.", "export"),
		exportUsers:  d("export_users", "Sessions that have the export open.", "export"),
		exportOldest: d("export_oldest_request_seconds", "For how long the oldest request to the store has not completed; 0 without one.", "export"),
		exportOps:    ops("export", "to the store", "export"),

		mappingOpen:   d("mapping_open", "1 while requests are carried out.", mapping...),
		mappingSize:   d("mapping_size_bytes", "Size of the mapped volume.", mapping...),
		mappingUsers:  d("mapping_users", "Connections to the mapping's socket; 1 for an attached kernel device.", mapping...),
		mappingOldest: d("mapping_oldest_request_seconds", "For how long the oldest request to the mapped volume has not completed; 0 without one.", mapping...),
		mappingOps:    ops("mapping", "to the mapped volume", mapping...),

		sessionUp:       d("volume_session_up", "1 while a path of the session is connected.", session...),
		sessionInFlight: d("volume_session_requests_in_flight", "Requests of the session that have not been answered.", session...),
		sessionWaiting:  d("volume_session_requests_waiting", "Requests of the session that wait for a permit or a path.", session...),
		sessionMemory:   d("volume_session_memory_bytes", "Chunks of the session that are in memory (server).", session...),

		sessionTimeouts: d("volume_session_request_timeouts_total", "times that a request was not answered within the I/O timeout (client)", session...),
		sessionUnfenced: d("volume_session_unfenced_failovers_total", "lost paths to a kernel's server whose requests went to another path without a fence (client)", session...),

		pathUp:       d("volume_path_up", "Connected paths between these addresses over this transport.", path...),
		pathLatency:  d("volume_path_latency_seconds", "Round trip of the last heartbeat; 0 before the first.", path...),
		pathInFlight: d("volume_path_requests_in_flight", "Requests on the path that have not been answered.", path...),
	}
	for _, k := range pathCounters {
		c.pathCounters = append(c.pathCounters, d("volume_path_"+k.name+"_total", k.help, path...))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *volumeCollector) Describe(ch chan<- *prometheus.Desc) {
	list := []*prometheus.Desc{c.exports, c.mappings, c.sessions, c.omitted, c.exportOpen, c.exportFailed, c.exportSize, c.exportUsers, c.exportOldest,
		c.mappingOpen, c.mappingSize, c.mappingUsers, c.mappingOldest, c.sessionUp, c.sessionInFlight, c.sessionWaiting, c.sessionMemory, c.sessionUnfenced, c.sessionTimeouts,
		c.pathUp, c.pathLatency, c.pathInFlight}
	for _, o := range []*opDescs{&c.exportOps, &c.mappingOps} {
		list = append(list, o.latency, o.errors, o.bytes, o.inFlight)
	}
	for _, d := range append(list, c.pathCounters...) {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *volumeCollector) Collect(ch chan<- prometheus.Metric) {
	defer c.guard.Recover(guard.Page, nil) // the library collects in goroutines of its own
	var s volumeSnapshot
	c.read(&s)
	p := &page{ch: ch}
	p.gauge(c.exports, float64(len(s.exports)))
	p.gauge(c.mappings, float64(len(s.mappings)))
	roles := map[string]int{volume.RoleClient: 0, volume.RoleServer: 0}
	for i := range s.sessions {
		roles[s.sessions[i].Role]++
	}
	for role, n := range roles {
		p.gauge(c.sessions, float64(n), role)
	}
	listed, gone := byName(s.exports, s.gone)
	exports := most(p, listed, func(e *namedExports) bool { return e.failed || e.info.Stalled() }, func(e *namedExports) uint64 { return e.traffic() })
	for _, e := range exports {
		p.gauge(c.exportOpen, boolean(e.info.State == "open"), e.info.Name)
		p.gauge(c.exportFailed, boolean(e.failed), e.info.Name)
		p.gauge(c.exportSize, float64(e.info.Info.Size), e.info.Name)
		p.gauge(c.exportUsers, float64(len(e.info.Users)), e.info.Name)
		p.gauge(c.exportOldest, e.info.Oldest.Seconds(), e.info.Name)
		p.ops(&c.exportOps, &e.ops, e.info.Name)
	}
	// The counters of what was open below roots stay where there is room for them.
	for _, e := range foremost(gone, maxVolumesInMetrics-len(exports), func(*namedExports) bool { return false }, func(e *namedExports) uint64 { return e.traffic() }) {
		p.ops(&c.exportOps, &e.ops, e.info.Name)
	}
	mappings := most(p, s.mappings, func(m *counted[volume.MappingInfo]) bool { return m.info.State != volume.StateOpen || m.info.Stalled() }, (*counted[volume.MappingInfo]).traffic)
	for _, m := range mappings {
		labels := []string{m.info.ID, m.info.Node, m.info.Name}
		p.gauge(c.mappingOpen, boolean(m.info.State == volume.StateOpen), labels...)
		p.gauge(c.mappingSize, float64(m.info.Info.Size), labels...)
		p.gauge(c.mappingUsers, float64(m.info.Users), labels...)
		p.gauge(c.mappingOldest, m.info.Oldest.Seconds(), labels...)
		p.ops(&c.mappingOps, &m.ops, labels...)
	}
	c.collectSessions(p, most(p, grouped(s.sessions, sessionLabels), sessionDown, func(g *[]volume.SessionInfo) (n uint64) {
		for _, i := range *g {
			n += uint64(i.InFlight)
		}
		return n
	}))
	c.collectPaths(p, most(p, grouped(s.paths, pathLabels), pathDown, func(g *[]volume.PathInfo) (n uint64) {
		for _, i := range *g {
			n += i.Reads + i.Writes
		}
		return n
	}))
	p.gauge(c.omitted, float64(p.omitted))
}

// namedExports are the exports of one name.
type namedExports struct {
	counted[volume.ExportInfo]
	failed bool // one of them
}

// byName adds up exports of one name: an export and volumes below several roots may have
// the same, and names of files need not be text. gone is what of them was open only before.
func byName(exports, closed []counted[volume.ExportInfo]) (listed, gone []namedExports) {
	var merged []namedExports
	at := map[string]int{}
	n := 0 // of merged that are listed
	for i, c := range slices.Concat(exports, closed) {
		e := namedExports{c, c.info.State == "failed"}
		e.info.Name = text(e.info.Name)
		k, there := at[e.info.Name]
		if !there {
			at[e.info.Name] = len(merged)
			merged = append(merged, e)
			if i < len(exports) {
				n++
			}
			continue
		}
		m := &merged[k]
		if e.info.State == "open" {
			m.info.State = e.info.State
		}
		m.failed = m.failed || e.failed
		m.info.Info.Size += e.info.Info.Size
		m.info.Oldest = max(m.info.Oldest, e.info.Oldest)
		m.info.Users = slices.Concat(m.info.Users, e.info.Users)
		for op := range m.ops {
			m.ops[op].Add(&e.ops[op])
		}
	}
	return merged[:n], merged[n:]
}

func sessionLabels(s *volume.SessionInfo) []string {
	return []string{s.Name, s.Role, addressOf(s.Peer)}
}

// pathLabels leave out the ports of a path, which are others after each reconnect.
func pathLabels(p *volume.PathInfo) []string {
	return []string{p.Session, p.Role, addressOf(p.Src), addressOf(p.Dst), cmp.Or(p.Transport, volume.TransportTCP)}
}

// sessionDown and pathDown say which there should be and are not: those of clients, which go on
// trying. Those of servers end.
func sessionDown(g *[]volume.SessionInfo) bool {
	return !slices.ContainsFunc(*g, func(s volume.SessionInfo) bool { return s.Up || s.Role != volume.RoleClient })
}

func pathDown(g *[]volume.PathInfo) bool {
	return !slices.ContainsFunc(*g, func(p volume.PathInfo) bool { return p.State == pathConnected || p.Role != volume.RoleClient })
}

func (c *volumeCollector) collectSessions(p *page, groups []*[]volume.SessionInfo) {
	var up, inFlight, waiting, memory, unfenced, timeouts sums
	for s := range within(groups) {
		labels := sessionLabels(s)
		up.add(boolean(s.Up), labels)
		inFlight.add(float64(s.InFlight), labels)
		waiting.add(float64(s.Waiting), labels)
		memory.add(float64(s.Memory), labels)
		if s.Role == volume.RoleClient {
			unfenced.add(float64(s.UnfencedFailovers), labels)
			timeouts.add(float64(s.Timeouts), labels)
		}
	}
	p.sums(c.sessionUp, prometheus.GaugeValue, &up)
	p.sums(c.sessionInFlight, prometheus.GaugeValue, &inFlight)
	p.sums(c.sessionWaiting, prometheus.GaugeValue, &waiting)
	p.sums(c.sessionMemory, prometheus.GaugeValue, &memory)
	p.sums(c.sessionUnfenced, prometheus.CounterValue, &unfenced)
	p.sums(c.sessionTimeouts, prometheus.CounterValue, &timeouts)
}

func (c *volumeCollector) collectPaths(p *page, groups []*[]volume.PathInfo) {
	var up, latency, inFlight sums
	counters := make([]sums, len(pathCounters))
	for t := range within(groups) {
		labels := pathLabels(t)
		up.add(boolean(t.State == pathConnected), labels)
		latency.atLeast(t.Latency.Seconds(), labels)
		inFlight.add(float64(t.InFlight), labels)
		for k := range pathCounters {
			counters[k].add(float64(pathCounters[k].read(t)), labels)
		}
	}
	p.sums(c.pathUp, prometheus.GaugeValue, &up)
	p.sums(c.pathLatency, prometheus.GaugeValue, &latency)
	p.sums(c.pathInFlight, prometheus.GaugeValue, &inFlight)
	for k := range counters {
		p.sums(c.pathCounters[k], prometheus.CounterValue, &counters[k])
	}
}

// page is one scrape.
type page struct {
	ch      chan<- prometheus.Metric
	omitted int
}

func (p *page) gauge(d *prometheus.Desc, v float64, labels ...string) {
	p.put(d, prometheus.GaugeValue, v, labels)
}

func (p *page) put(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	p.ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
}

func (p *page) sums(d *prometheus.Desc, kind prometheus.ValueType, s *sums) {
	for _, r := range s.rows {
		p.put(d, kind, r.value, r.labels)
	}
}

// ops shows the operations a volume has seen: the count of the histogram is
// that of the requests. Errors are shown of all: a counter that comes with the first
// error in it has not risen, for those who watch it.
func (p *page) ops(d *opDescs, ops *[blk.NumOps]blk.OpCounts, labels ...string) {
	for i := range ops {
		o := &ops[i]
		with := append(slices.Clone(labels), blk.Op(i).String())
		p.put(d.errors, prometheus.CounterValue, float64(o.Errors), with)
		if o.Submitted == 0 {
			continue
		}
		p.ch <- &histMetric{d.latency, histOf(o), with}
		p.put(d.bytes, prometheus.CounterValue, float64(o.Bytes), with)
		p.gauge(d.inFlight, float64(o.InFlight()), with...)
	}
}

// histOf counts by powers of two what blk counts by quarters of them from 256 ns.
func histOf(o *blk.OpCounts) *stats.Hist {
	h := &stats.Hist{Sum: o.Time}
	for i, n := range o.Latency {
		at := 8 // up to 2^8 ns
		if i > 0 {
			at = 9 + (i-1)/4
		}
		h.Bucket[min(at, len(h.Bucket)-1)] += n
		h.Count += n
	}
	return h
}

// most is the part of a list that is shown.
func most[T any](p *page, list []T, down func(*T) bool, traffic func(*T) uint64) []*T {
	shown := foremost(list, maxVolumesInMetrics, down, traffic)
	p.omitted += len(list) - len(shown)
	return shown
}

// grouped puts together what has the same labels: series of a part of them would say less than there is.
func grouped[T any](list []T, labels func(*T) []string) (groups [][]T) {
	at := map[string]int{}
	for i := range list {
		key := labelKey(texts(labels(&list[i])))
		k, there := at[key]
		if !there {
			k, at[key] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[k] = append(groups[k], list[i])
	}
	return groups
}

// within goes over all of so many groups.
func within[T any](groups []*[]T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, g := range groups {
			for i := range *g {
				if !yield(&(*g)[i]) {
					return
				}
			}
		}
	}
}

func labelKey(labels []string) string { return strings.Join(labels, "\x00") }

// sums are the values of one metric by their labels; no label twice.
type sums struct {
	rows []sumRow
	at   map[string]int
}

type sumRow struct {
	value  float64
	labels []string
}

func (s *sums) row(labels []string) *sumRow {
	labels = texts(labels) // names of sessions come from peers
	key := labelKey(labels)
	i, ok := s.at[key]
	if !ok {
		if s.at == nil {
			s.at = map[string]int{}
		}
		i = len(s.rows)
		s.at[key] = i
		s.rows = append(s.rows, sumRow{0, labels})
	}
	return &s.rows[i]
}

func (s *sums) add(v float64, labels []string) { s.row(labels).value += v }

func (s *sums) atLeast(v float64, labels []string) {
	r := s.row(labels)
	r.value = max(r.value, v)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// addressOf is an address and port without the port.
func addressOf(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		return host
	}
	return s
}
