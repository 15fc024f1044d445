package monitoring

// volumes shows exports and mapped volumes, their sessions and paths.
func volumes() Dashboard {
	byMapping := "{{instance}} {{mapping}} {{op}}"
	byExport := "{{instance}} {{export}} {{op}}"
	byPath := "{{instance}} {{source}} to {{destination}} {{transport}}"
	return Dashboard{
		UID: "rdsd-volumes", Title: "rdsd / Volumes",
		Description: "Mapped volumes and exports: requests, latencies and errors, the sessions and paths they go over, and failovers.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Mapped volumes", "short", "Mapped volumes.", q(`sum(rdsd_mappings{$sel})`, "volumes")),
				stat("Exports", "short", "Exports.", q(`sum(rdsd_exports{$sel})`, "exports")),
				stat("Not open", "short", "Mapped volumes whose requests are not carried out now.", q(`count(rdsd_mapping_open{$sel} == 0) or vector(0)`, "volumes")).bad(),
				stat("Paths down", "short", "Addresses between which no path of a session is connected over a transport, on the mapping side.",
					q(`count(rdsd_volume_path_up{role="client",$sel} == 0) or vector(0)`, "paths")).bad(),
				stat("Failovers in 1 h", "short", "Requests that were sent again over another path.",
					q(`sum(increase(rdsd_volume_path_failovers_total{$sel}[1h]))`, "requests")),
				stat("Errors in 1 h", "short", "Requests to mapped volumes that failed.", q(`sum(increase(rdsd_mapping_request_errors_total{$sel}[1h]))`, "requests")).bad(),
			}},
			{"Mapped volumes", []Panel{
				graph("Requests", "iops", "Requests a second, by volume and operation.",
					q(`sum by (instance, mapping, op) (rate(rdsd_mapping_request_seconds_count{$sel}[$__rate_interval]))`, byMapping)),
				graph("Bytes", "Bps", "Bytes a second of requests that succeeded.",
					q(`sum by (instance, mapping, op) (rate(rdsd_mapping_bytes_total{$sel}[$__rate_interval]))`, byMapping)),
				graph("Errors", "short", "Requests a second that failed.",
					q(`sum by (instance, mapping, op) (rate(rdsd_mapping_request_errors_total{$sel}[$__rate_interval]))`, byMapping)),
				graph("Latency, mean", "s", "Time requests took on average, the other node and waiting for a path included.",
					q(`sum by (instance, mapping, op) (rate(rdsd_mapping_request_seconds_sum{$sel}[$__rate_interval])) / sum by (instance, mapping, op) (rate(rdsd_mapping_request_seconds_count{$sel}[$__rate_interval]))`, byMapping)),
				graph("Latency, 99th percentile", "s", "The slowest hundredth of five minutes; recorded by the rules.",
					q(`instance:rdsd_mapping_request_seconds:p99_rate5m{$sel}`, byMapping)),
				graph("In flight", "short", "Requests that have not completed.", q(`rdsd_mapping_requests_in_flight{$sel}`, byMapping)),
			}},
			{"Exports", []Panel{
				graph("Requests", "iops", "Requests a second to the stores of exports.",
					q(`sum by (instance, export, op) (rate(rdsd_export_request_seconds_count{$sel}[$__rate_interval]))`, byExport)),
				graph("Latency, 99th percentile", "s", "Time the store took, the slowest hundredth of five minutes; recorded by the rules.",
					q(`instance:rdsd_export_request_seconds:p99_rate5m{$sel}`, byExport)),
				graph("Errors", "short", "Requests a second that the store failed.",
					q(`sum by (instance, export, op) (rate(rdsd_export_request_errors_total{$sel}[$__rate_interval]))`, byExport)),
				graph("Bytes", "Bps", "Bytes a second of requests to the store that succeeded.",
					q(`sum by (instance, export, op) (rate(rdsd_export_bytes_total{$sel}[$__rate_interval]))`, byExport)),
				table("Exports", "Each export: whether its store is open, or could not be opened, its size, and how many sessions have it open.",
					q(`rdsd_export_open{$sel}`, ""), q(`rdsd_export_failed{$sel}`, ""), q(`rdsd_export_size_bytes{$sel}`, ""), q(`rdsd_export_users{$sel}`, ""),
				).columns("open", "failed", "size in bytes", "sessions").wide(16),
			}},
			{"Sessions and paths", []Panel{
				graph("Paths connected", "short", "Connected paths between two addresses over a transport, on the mapping side.",
					q(`rdsd_volume_path_up{role="client",$sel}`, byPath)),
				graph("Round trip of paths", "s", "Round trip of the last heartbeat.", q(`rdsd_volume_path_latency_seconds{role="client",$sel}`, byPath)),
				graph("Failovers", "short", "Requests a second that a path took over from others.",
					q(`sum by (instance, source, destination, transport) (rate(rdsd_volume_path_failovers_total{$sel}[$__rate_interval]))`, byPath)),
				graph("Reconnects", "short", "Reconnects a second, and those that failed.",
					q(`sum by (instance, source, destination, transport) (rate(rdsd_volume_path_reconnects_total{$sel}[$__rate_interval]))`, byPath),
					q(`sum by (instance, source, destination, transport) (rate(rdsd_volume_path_reconnects_failed_total{$sel}[$__rate_interval]))`, byPath+" failed")),
				graph("Bytes by path", "Bps", "Bytes read and written a second over each path.",
					q(`sum by (instance, source, destination, transport) (rate(rdsd_volume_path_read_bytes_total{$sel}[$__rate_interval]))`, byPath+" read"),
					q(`sum by (instance, source, destination, transport) (rate(rdsd_volume_path_write_bytes_total{$sel}[$__rate_interval]))`, byPath+" written")),
				graph("Sessions", "short", "Requests of sessions that wait for a permit or a path, and that have not been answered.",
					q(`rdsd_volume_session_requests_waiting{role="client",$sel}`, "{{instance}} {{session}} waiting"),
					q(`rdsd_volume_session_requests_in_flight{$sel}`, "{{instance}} {{session}} {{role}} in flight")),
				graph("Sessions up", "short", "1 while a path of the session is connected.", q(`rdsd_volume_session_up{$sel}`, "{{instance}} {{session}} {{role}}")),
				graph("Memory of sessions", "bytes", "Chunks of sessions that are in memory, on the exporting side.",
					q(`rdsd_volume_session_memory_bytes{role="server",$sel}`, "{{instance}} {{session}}")),
			}},
		},
	}
}
