package monitoring

// congestion shows which ports are congested, because of whom and at whose cost.
func congestion() Dashboard {
	return Dashboard{
		UID: "rdsd-congestion", Title: "rdsd / Congestion",
		Description: "Which port on which node is congested, since when, who should read it, who fills it and who waits.",
		Rows: []Row{
			{"Now", []Panel{
				stat("Congested ports here", "short", "Ports of the chosen nodes that their readers do not read fast enough.",
					q(`sum(rdsd_congested_ports{side="reader",$sel})`, "ports")).wide(6),
				stat("Congested ports of peers", "short", "Ports of peers, kernels among them, to which the chosen nodes may not send.",
					q(`sum(rdsd_congested_ports{side="sender",$sel})`, "ports")).wide(6),
				stat("Longest", "s", "For how long the port that has been congested longest has been so.",
					q(`max(rdsd_congested_port_age_seconds{$sel}) or vector(0)`, "age")).wide(6),
				stat("Ports not shown", "short", "Congested ports beyond the 16 of each side that a node shows.",
					q(`sum(rdsd_metrics_ports_omitted{$sel})`, "ports")).wide(6),
				table("Ports that are not read", "Congested ports of the chosen nodes: the user and process that should read them, what lies unread, and how many sends of this node met that.",
					q(`rdsd_congested_port_age_seconds{side="reader",$sel}`+reader, ""),
					q(`rdsd_congested_port_queued_bytes{side="reader",$sel}`+reader, ""),
					q(`rdsd_congested_port_waiting_sockets{side="reader",$sel}`+reader, ""),
					q(`rdsd_congested_port_blocked_sends{side="reader",$sel}`+reader, ""),
				).columns("age", "unread bytes", "sockets waiting here", "sends blocked here"),
				table("Who fills them", "Unread payload of the senders with most of it, in the congested ports of the chosen nodes; source others is the rest.",
					q(`rdsd_congested_port_filled_bytes{side="reader",$sel}`, "")).columns("unread bytes").wide(12),
				table("Ports of peers", "Congested ports of peers as the chosen nodes see them, and what waits for them here.",
					q(`rdsd_congested_port_age_seconds{side="sender",$sel}`, ""),
					q(`rdsd_congested_port_waiting_sockets{side="sender",$sel}`, ""),
					q(`rdsd_congested_port_blocked_sends{side="sender",$sel}`, ""),
				).columns("age", "sockets waiting", "sends blocked").wide(12),
			}},
			{"Over time", []Panel{
				graph("Age of congested ports", "s", "A line for each port while it is congested: it rises until its reader reads again.",
					q(`rdsd_congested_port_age_seconds{side="reader",$sel}`, "{{address}}:{{port}}")).wide(12),
				graph("Unread in congested ports", "bytes", "Payload in the receive queues of congested ports.",
					q(`rdsd_congested_port_queued_bytes{side="reader",$sel}`, "{{address}}:{{port}}")).wide(12),
				graph("Congested ports", "short", "Ports of each node, and ports of its peers, that are congested.",
					q(`rdsd_congested_ports{$sel}`, "{{instance}} {{side}}")),
				graph("Congested ports by peer", "short", "Ports of each peer that are congested, where there are any, of the ten with most.",
					q(`topk(10, rdsd_peer_congested_ports{$sel} > 0)`, "{{instance}} of {{peer}}")),
				graph("Congestion updates", "short", "Updates of congestion maps sent and received, a second.",
					q(`sum by (instance) (rate(rds_cong_update_queued_total{$sel}[$__rate_interval]))`, "{{instance}} sent"),
					q(`sum by (instance) (rate(rds_cong_update_received_total{$sel}[$__rate_interval]))`, "{{instance}} received")),
			}},
			{"What it costs", []Panel{
				graph("Sends refused", "short", "Sends a second refused with ENOBUFS because the destination is congested.",
					q(`sum by (instance) (rate(rds_cong_send_error_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Sends that wait", "short", "Sends a second that wait because the destination is congested.",
					q(`sum by (instance) (rate(rds_cong_send_blocked_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Datagrams held back", "short", "Datagrams a second that had been accepted and are kept because their destination became full, and flows resumed.",
					q(`sum by (instance) (rate(rdsd_hold_enter_total{$sel}[$__rate_interval]))`, "{{instance}} held"),
					q(`sum by (instance) (rate(rdsd_hold_resume_total{$sel}[$__rate_interval]))`, "{{instance}} resumed")),
				graph("Links without credit", "short", "Transmit turns a second that ended for want of credit, and credit kept back for want of memory.",
					q(`sum by (instance) (rate(rdsd_credit_stall_total{$sel}[$__rate_interval]))`, "{{instance}} no credit"),
					q(`sum by (instance) (rate(rdsd_credit_withheld_total{$sel}[$__rate_interval]))`, "{{instance}} kept back")),
				graph("Kernel links paused", "short", "Times a second that the link of a kernel was not read on because a receiver is full: its other flows wait, too.",
					q(`sum by (instance) (rate(rdsd_read_paused_total{$sel}[$__rate_interval]))`, "{{instance}}")),
				graph("Receive queues", "bytes", "Unread payload of all sockets, and of those with most.",
					q(`rdsd_receive_queue_bytes{$sel}`, "{{instance}} all"),
					q(`topk(5, rdsd_socket_receive_queue_bytes{$sel} > 0)`, "{{address}}:{{port}} uid {{uid}}")),
			}},
		},
	}
}

// reader adds the user and process that should read a congested port.
const reader = ` * on (job, instance, side, address, port) group_left (uid, pid) rdsd_congested_port_reader{$sel}`
