package monitoring

// cluster shows all nodes side by side.
func cluster() Dashboard {
	return Dashboard{
		UID: "rdsd-cluster", Title: "rdsd / Cluster",
		Description: "All nodes of a cluster of rdsd daemons side by side: what is wrong first, then traffic, congestion and memory.",
		Rows: []Row{
			{"Health", []Panel{
				stat("Nodes up", "short", "Daemons that answer Prometheus.", q(`sum(up{$sel})`, "up")),
				stat("Nodes down", "short", "Daemons that do not answer Prometheus.", q(`count(up{$sel} == 0) or vector(0)`, "down")).bad(),
				stat("Alerts firing", "short", "Alerts of rdsd's rules that fire now.", q(`count(ALERTS{alertname=~"Rdsd.+",alertstate="firing",$sel}) or vector(0)`, "firing")).bad(),
				stat("Unreachable peers", "short", "Peers for which datagrams wait while no path is up.",
					q(`count(rdsd_peer_up{$sel} == 0 and rdsd_peer_waiting_datagrams{$sel} > 0) or vector(0)`, "peers")).bad(),
				stat("Congested ports", "short", "Ports that their readers do not read fast enough.", q(`sum(rdsd_congested_ports{side="reader",$sel})`, "ports")).bad(),
				stat("Volumes not open", "short", "Mapped volumes whose requests are not carried out, and exports whose store could not be opened.",
					q(`count(rdsd_mapping_open{$sel} == 0 or rdsd_export_failed{$sel} == 1) or vector(0)`, "volumes")).bad(),
			}},
			{"Nodes", []Panel{
				table("Nodes", "Each daemon: its version, how long it has run, its peers, and what it has open.",
					q(`rdsd_build_info{$sel}`, ""),
					q(`time() - process_start_time_seconds{$sel}`, ""),
					q(`rdsd_peers{$sel}`, ""),
					q(`rdsd_peers_up{$sel}`, ""),
					q(`rdsd_sockets{$sel}`, ""),
					q(`sum by (job, instance) (rdsd_congested_ports{side="reader",$sel})`, ""),
				).columns("", "uptime", "peers", "peers up", "sockets", "congested ports"),
			}},
			{"Problems", []Panel{
				table("Problems", "What rdsd status of each daemon lists, by code and severity; there it says what mends it.",
					q(`sum by (job, instance, code, severity) (rdsd_problems{$sel})`, "")).columns("problems").wide(12),
				graph("Problems", "short", "Problems that rdsd status of each daemon lists, notes included, by severity.",
					q(`sum by (instance, severity) (rdsd_problems{$sel})`, "{{instance}} {{severity}}")).wide(12),
			}},
			{"Traffic", []Panel{
				graph("Datagrams accepted", "short", "Datagrams that applications sent, a second, by node.",
					q(`sum by (instance) (rate(rds_send_queued_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Datagrams read", "short", "Datagrams that applications read, a second, by node.",
					q(`sum by (instance) (rate(rds_recv_delivered_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Bytes given to links", "Bps", "Bytes written to links, headers included, a second, by node.",
					q(`sum by (instance) (rate(rdsd_sent_bytes_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Datagrams not delivered", "short", "Datagrams a second whose outcome is failed or unknown, and those received for a port that nobody has.",
					q(`sum by (instance) (rate(rdsd_outcome_failed_total{$sel}[$__rate_interval]))`, "{{instance}} failed"),
					q(`sum by (instance) (rate(rdsd_outcome_unknown_total{$sel}[$__rate_interval]))`, "{{instance}} unknown"),
					q(`sum by (instance) (rate(rds_recv_drop_no_sock_total{$sel}[$__rate_interval]))`, "{{instance}} no such port")),
				graph("Links lost", "short", "Links lost or dropped, a second, by node.",
					q(`sum by (instance) (rate(rds_conn_reset_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Round trip, 99th percentile", "s", "Handshake or heartbeat to its answer, the slowest hundredth; recorded by the rules.",
					q(`instance:rdsd_round_trip_seconds:p99_rate5m{$sel}`, "{{instance}}")),
			}},
			{"Congestion and memory", []Panel{
				graph("Congested ports", "short", "Ports of each node that are congested.",
					q(`sum by (instance) (rdsd_congested_ports{side="reader",$sel})`, "{{instance}}")),
				graph("Sends refused or made to wait", "short", "Sends a second that met a congested destination, by node of the sender.",
					q(`sum by (instance) (rate(rds_cong_send_error_total{$sel}[$__rate_interval]) + rate(rds_cong_send_blocked_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Memory in use", "percentunit", "Part of limits.memory_bytes that is in use, by node; recorded by the rules.",
					q(`instance:rdsd_budget_used:ratio{budget="memory",$sel}`, "{{instance}}")),
				graph("Processor", "percentunit", "Processors that each daemon uses; 100 % is one.",
					q(`rate(process_cpu_seconds_total{$sel}[$__rate_interval])`, "{{instance}}")),
				graph("Resident memory", "bytes", "Resident memory of each daemon.", q(`process_resident_memory_bytes{$sel}`, "{{instance}}")),
				graph("Refused by limits", "short", "What limits refused, a second, by node and budget.",
					q(`sum by (instance, budget) (rate(rdsd_budget_refused_total{$sel}[$__rate_interval])) > 0 or sum by (instance) (rate(rdsd_budget_refused_total{$sel}[$__rate_interval]))`, "{{instance}} {{budget}}")),
			}},
		},
	}
}
