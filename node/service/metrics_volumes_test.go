package service

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node/volume"
)

// busyVolumes is a node that exports and maps, with two paths between the same
// addresses beside one over RDMA, and a session whose name is no text.
func busyVolumes(s *volumeSnapshot) {
	e := volume.ExportInfo{State: "open", Info: blk.Info{Size: 1 << 20}, Users: make([]volume.ExportUser, 2), Oldest: 3 * time.Second}
	e.Name = "disk"
	m := volume.MappingInfo{State: volume.StateOpen, Users: 1, Oldest: 2500 * time.Millisecond}
	m.ID, m.Node, m.Name, m.Info.Size = "v1", "10.0.0.7", "far", 4096
	var ops [blk.NumOps]blk.OpCounts
	w := &ops[blk.OpWrite]
	w.Submitted, w.Completed, w.Errors, w.Bytes, w.Time = 5, 4, 1, 3<<12, 4*time.Millisecond
	w.Latency[0], w.Latency[1], w.Latency[44] = 1, 2, 1
	s.exports = append(s.exports, counted[volume.ExportInfo]{e, ops})
	s.mappings = append(s.mappings, counted[volume.MappingInfo]{m, ops})
	s.sessions = []volume.SessionInfo{
		{Name: "a-b", Role: volume.RoleClient, Peer: "10.0.0.7:16388", Up: true, InFlight: 3, Timeouts: 4},
		{Name: "\xff", Role: volume.RoleServer, Peer: "[fd00::7]:4000", Memory: 7},
	}
	for i := range 2 {
		p := volume.PathInfo{Session: "a-b", Role: volume.RoleClient, State: "connected"}
		p.Src, p.Dst = fmt.Sprintf("10.0.0.1:4000%d", i), "10.0.0.7:16388"
		p.Reads, p.ReadBytes, p.Writes, p.WriteBytes, p.Failovers, p.ReconnectsOK, p.ReconnectsFailed = 1, 2, 3, 4, 5, 6, 7
		p.Latency = time.Duration(i) * time.Second
		s.paths = append(s.paths, p)
	}
	p := s.paths[0]
	p.Transport, p.State = volume.TransportIB, "reconnecting"
	s.paths = append(s.paths, p)
}

func volumeRegistry(read func(*volumeSnapshot)) *prometheus.Registry {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(newVolumeCollector(read, nil))
	return r
}

func TestVolumeMetrics(t *testing.T) {
	r := volumeRegistry(busyVolumes)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `
# HELP rdsd_export_bytes_total bytes of requests to the store that succeeded
# TYPE rdsd_export_bytes_total counter
rdsd_export_bytes_total{export="disk",op="write"} 12288
# HELP rdsd_export_oldest_request_seconds For how long the oldest request to the store has not completed; 0 without one.
# TYPE rdsd_export_oldest_request_seconds gauge
rdsd_export_oldest_request_seconds{export="disk"} 3
# HELP rdsd_mapping_oldest_request_seconds For how long the oldest request to the mapped volume has not completed; 0 without one.
# TYPE rdsd_mapping_oldest_request_seconds gauge
rdsd_mapping_oldest_request_seconds{mapping="v1",node="10.0.0.7",volume="far"} 2.5
# HELP rdsd_mapping_open 1 while requests are carried out.
# TYPE rdsd_mapping_open gauge
rdsd_mapping_open{mapping="v1",node="10.0.0.7",volume="far"} 1
# HELP rdsd_mapping_request_errors_total requests to the mapped volume that failed
# TYPE rdsd_mapping_request_errors_total counter
rdsd_mapping_request_errors_total{mapping="v1",node="10.0.0.7",op="discard",volume="far"} 0
rdsd_mapping_request_errors_total{mapping="v1",node="10.0.0.7",op="flush",volume="far"} 0
rdsd_mapping_request_errors_total{mapping="v1",node="10.0.0.7",op="read",volume="far"} 0
rdsd_mapping_request_errors_total{mapping="v1",node="10.0.0.7",op="write",volume="far"} 1
rdsd_mapping_request_errors_total{mapping="v1",node="10.0.0.7",op="write zeroes",volume="far"} 0
# HELP rdsd_mapping_requests_in_flight Requests to the mapped volume that have not completed.
# TYPE rdsd_mapping_requests_in_flight gauge
rdsd_mapping_requests_in_flight{mapping="v1",node="10.0.0.7",op="write",volume="far"} 1
# HELP rdsd_volume_path_failovers_total requests the path took over from others
# TYPE rdsd_volume_path_failovers_total counter
rdsd_volume_path_failovers_total{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="ib"} 5
rdsd_volume_path_failovers_total{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="tcp"} 10
# HELP rdsd_volume_path_latency_seconds Round trip of the last heartbeat; 0 before the first.
# TYPE rdsd_volume_path_latency_seconds gauge
rdsd_volume_path_latency_seconds{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="ib"} 0
rdsd_volume_path_latency_seconds{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="tcp"} 1
# HELP rdsd_volume_path_up Connected paths between these addresses over this transport.
# TYPE rdsd_volume_path_up gauge
rdsd_volume_path_up{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="ib"} 0
rdsd_volume_path_up{destination="10.0.0.7",role="client",session="a-b",source="10.0.0.1",transport="tcp"} 2
# HELP rdsd_volume_session_memory_bytes Chunks of the session that are in memory (server).
# TYPE rdsd_volume_session_memory_bytes gauge
rdsd_volume_session_memory_bytes{peer="10.0.0.7",role="client",session="a-b"} 0
rdsd_volume_session_memory_bytes{peer="fd00::7",role="server",session="?"} 7
# HELP rdsd_volume_session_request_timeouts_total times that a request was not answered within the I/O timeout (client)
# TYPE rdsd_volume_session_request_timeouts_total counter
rdsd_volume_session_request_timeouts_total{peer="10.0.0.7",role="client",session="a-b"} 4
# HELP rdsd_volume_sessions Sessions for volumes.
# TYPE rdsd_volume_sessions gauge
rdsd_volume_sessions{role="client"} 1
rdsd_volume_sessions{role="server"} 1
`
	err = testutil.GatherAndCompare(r, strings.NewReader(want), "rdsd_export_bytes_total", "rdsd_export_oldest_request_seconds", "rdsd_mapping_oldest_request_seconds", "rdsd_mapping_open", "rdsd_mapping_request_errors_total",
		"rdsd_mapping_requests_in_flight", "rdsd_volume_path_failovers_total", "rdsd_volume_path_latency_seconds", "rdsd_volume_path_up",
		"rdsd_volume_session_memory_bytes", "rdsd_volume_session_request_timeouts_total", "rdsd_volume_sessions")
	if err != nil {
		t.Error(err)
	}
}

// The histogram has every request, at a bound that is not below what it took.
func TestVolumeLatencies(t *testing.T) {
	var s volumeSnapshot
	busyVolumes(&s)
	o := &s.exports[0].ops[blk.OpWrite]
	h := histOf(o)
	if h.Count != 4 || h.Sum != 4*time.Millisecond {
		t.Errorf("%d requests of %v", h.Count, h.Sum)
	}
	for i := range o.Latency {
		one := blk.OpCounts{}
		one.Latency[i] = 1
		at := -1
		for b, n := range histOf(&one).Bucket {
			if n == 1 {
				at = b
			}
		}
		if bound := blk.LatencyBound(i); bound > 1<<at || bound != 0 && bound <= 1<<at/4 {
			t.Errorf("bucket %d, up to %v, is counted as up to %v", i, bound, time.Duration(1<<at))
		}
	}
	families, err := volumeRegistry(busyVolumes).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var found *dto.Metric
	for _, f := range families {
		if f.GetName() == "rdsd_mapping_request_seconds" {
			found = f.GetMetric()[0]
		}
	}
	if found == nil || found.GetHistogram().GetSampleCount() != 4 || len(found.GetLabel()) != 4 {
		t.Errorf("histogram %v", found)
	}
}

// What peers and administrators can make many of does not make the page large, and what is down
// is on it.
func TestVolumeMetricsAreBounded(t *testing.T) {
	r := volumeRegistry(func(s *volumeSnapshot) {
		for i := range maxVolumesInMetrics + 10 {
			e := counted[volume.ExportInfo]{}
			e.info.Name = fmt.Sprint(i)
			e.ops[blk.OpRead].Completed = uint64(i) // the quietest are left out
			s.exports = append(s.exports, e)
			s.sessions = append(s.sessions, volume.SessionInfo{Name: fmt.Sprint(i), Role: volume.RoleClient, Up: true, InFlight: i})
			m := counted[volume.MappingInfo]{info: volume.MappingInfo{State: volume.StateOpen}, ops: e.ops}
			m.info.ID = fmt.Sprint(i)
			s.mappings = append(s.mappings, m)
			for port := range 2 { // of two between the same addresses the quieter one is not left out either
				t := volume.PathInfo{Session: fmt.Sprint(i), Role: volume.RoleClient, State: pathConnected}
				t.Src, t.Reads = fmt.Sprint("10.0.0.1:", port), uint64(i*port)
				s.paths = append(s.paths, t)
			}
		}
		s.exports[0].info.State, s.sessions[0].Up, s.mappings[0].info.State = "failed", false, volume.StateClosed
		s.exports[1].info.Oldest, s.mappings[1].info.Oldest = volume.StallGrace, volume.StallGrace
		s.paths[0].State, s.paths[1].State, s.paths[len(s.paths)-1].State = "reconnecting", "reconnecting", "reconnecting"
	})
	if n, err := testutil.GatherAndCount(r, "rdsd_export_open", "rdsd_volume_session_up", "rdsd_mapping_open", "rdsd_volume_path_up"); err != nil || n != 4*maxVolumesInMetrics {
		t.Errorf("%d series, %v", n, err)
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(r, metricsOptions).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`rdsd_export_failed{export="0"} 1`, `rdsd_volume_session_up{peer="",role="client",session="0"} 0`,
		`rdsd_mapping_open{mapping="0",node="",volume=""} 0`, `rdsd_export_oldest_request_seconds{export="1"} 10`, `rdsd_mapping_oldest_request_seconds{mapping="1",node="",volume=""} 10`,
		`rdsd_volume_path_up{destination="",role="client",session="0",source="10.0.0.1",transport="tcp"} 0`,
		fmt.Sprintf(`rdsd_volume_path_up{destination="",role="client",session="%d",source="10.0.0.1",transport="tcp"} 1`, maxVolumesInMetrics+9)} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("not shown: %s", want)
		}
	}
	want := `
# HELP rdsd_metrics_volumes_omitted Exports, mappings, sessions and paths left out of this page because there are too many.
# TYPE rdsd_metrics_volumes_omitted gauge
rdsd_metrics_volumes_omitted 40
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "rdsd_metrics_volumes_omitted"); err != nil {
		t.Error(err)
	}
}

// docs/operations.md lists every metric of volumes.
func TestOperationsListsVolumeMetrics(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan *prometheus.Desc, 100)
	newVolumeCollector(busyVolumes, nil).Describe(ch)
	close(ch)
	for d := range ch {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/operations.md does not list %s", name)
		}
	}
}

// Volumes of one name below two roots, beside an export that has it too, are added up, and a
// name need not be text.
func TestVolumesOfOneName(t *testing.T) {
	r := volumeRegistry(func(s *volumeSnapshot) {
		for _, name := range []string{"disk", "disk", "disk", "\xff", "\xfe"} {
			e := counted[volume.ExportInfo]{info: volume.ExportInfo{State: "open", Info: blk.Info{Size: 4096}, Users: make([]volume.ExportUser, 1)}}
			e.info.Name = name
			e.ops[blk.OpRead] = blk.OpCounts{Submitted: 2, Completed: 1, Bytes: 7}
			s.exports = append(s.exports, e)
		}
		s.exports[0].info.State, s.exports[1].info.State = "closed", "failed"
		for _, name := range []string{"disk", "gone"} { // below roots, and closed
			e := counted[volume.ExportInfo]{}
			e.info.Name = name
			e.ops[blk.OpRead] = blk.OpCounts{Submitted: 2, Completed: 2, Bytes: 100}
			s.gone = append(s.gone, e)
		}
	})
	want := `
# HELP rdsd_export_bytes_total bytes of requests to the store that succeeded
# TYPE rdsd_export_bytes_total counter
rdsd_export_bytes_total{export="?",op="read"} 14
rdsd_export_bytes_total{export="disk",op="read"} 121
rdsd_export_bytes_total{export="gone",op="read"} 100
# HELP rdsd_export_failed 1 while the store of the export could not be opened.
# TYPE rdsd_export_failed gauge
rdsd_export_failed{export="?"} 0
rdsd_export_failed{export="disk"} 1
# HELP rdsd_export_open 1 while the store of the export is open: that of a file or block device while a session has it open.
# TYPE rdsd_export_open gauge
rdsd_export_open{export="?"} 1
rdsd_export_open{export="disk"} 1
# HELP rdsd_export_users Sessions that have the export open.
# TYPE rdsd_export_users gauge
rdsd_export_users{export="?"} 2
rdsd_export_users{export="disk"} 3
# HELP rdsd_exports Exports, those opened below roots included.
# TYPE rdsd_exports gauge
rdsd_exports 5
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "rdsd_export_bytes_total", "rdsd_export_failed", "rdsd_export_open", "rdsd_export_users", "rdsd_exports"); err != nil {
		t.Error(err)
	}
}
