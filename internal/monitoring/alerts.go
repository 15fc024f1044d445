package monitoring

// Records are the recording rules.
func Records() []Record {
	p99 := func(metric, by string) string {
		return `histogram_quantile(0.99, sum by (job, instance` + by + `, le) (rate(` + metric + `_bucket[5m])))`
	}
	return []Record{
		{"instance:rdsd_budget_used:ratio", `rdsd_budget_used / (rdsd_budget_limit > 0)`},
		{"instance:rdsd_queueing_seconds:p99_rate5m", p99("rdsd_queueing_seconds", "")},
		{"instance:rdsd_round_trip_seconds:p99_rate5m", p99("rdsd_round_trip_seconds", "")},
		{"instance:rdsd_mapping_request_seconds:p99_rate5m", p99("rdsd_mapping_request_seconds", ", mapping, op")},
		{"instance:rdsd_export_request_seconds:p99_rate5m", p99("rdsd_export_request_seconds", ", export, op")},
	}
}

// second is the bound of buckets next to a second, 2^30 ns. A quantile is exact at a bound alone:
// what lies between two is taken to be spread evenly, and between this one and the next below, a
// quarter of it, a ninth of all that is there would be taken for more than a second.
const second = "1.073741824"

// Alerts are the alerting rules, the worst first of each subject.
func Alerts() []Alert {
	return append(append(nodeAlerts(), datagramAlerts()...), volumeAlerts()...)
}

func nodeAlerts() []Alert {
	return []Alert{
		{
			"RdsdDown", `up{job="rdsd"} == 0`, "1m", Critical,
			"rdsd at {{ $labels.instance }} does not answer",
			"Prometheus cannot read the metrics of {{ $labels.instance }}. Its sockets and volumes are most likely gone for everybody.",
			`
Look at the process: ` + "`systemctl status rdsd`, `journalctl -u rdsd -n 50`" + `. The last line of the log says why it
ended; [the exit status](operations.md#starting-and-stopping) 78 is a configuration that is wrong, which nothing
starts again. If it runs and ` + "`curl http://127.0.0.1:16386/healthz`" + ` answers on its machine, Prometheus cannot reach
` + "`http.listen`" + `, which is on loopback unless it is configured.`,
		},
		{
			"RdsdProblem", `sum by (job, instance, code) (rdsd_problems{severity="error",code!="panicked"}) > 0`, "5m", Critical,
			"rdsd at {{ $labels.instance }} has the problem {{ $labels.code }}",
			"rdsd status of {{ $labels.instance }} has listed an error of the code {{ $labels.code }} for five minutes.",
			`
` + "`rdsd status`" + ` on that node says what it is about and what mends it; [all codes](operations.md#problems-and-remedies) with
their remedies. Other alerts are about some of these in particular and fire earlier. Of a panic, which others are served on after, RdsdPanic tells alone:
the problem ` + "`panicked`" + ` stays until the daemon is started again.`,
		},
		{
			"RdsdRestarting", `changes(process_start_time_seconds{job="rdsd"}[15m]) > 2`, "", Warning,
			"rdsd at {{ $labels.instance }} starts again and again",
			"The daemon at {{ $labels.instance }} has started more than twice in 15 minutes. At each start datagrams under way may be lost, and volumes wait.",
			`
The log before each start says what ended it. Exit status 70 is a bug, with a stack in the log; 137 or ` + "`oom-kill`" + ` in
` + "`journalctl -k`" + ` is the kernel for want of memory: ` + "`MemoryMax`" + ` of the unit must be above ` + "`limits.memory_bytes`" + ` with
room for the runtime ([Limits](operations.md#limits)).`,
		},
		{
			"RdsdPanic", `increase(rdsd_panics_total[15m]) > 0`, "", Warning,
			"a bug of rdsd at {{ $labels.instance }} ended one {{ $labels.what }}",
			"A panic in {{ $labels.instance }} was contained: it ended one {{ $labels.what }} and nothing else.",
			`
Report it with the stack from the log (` + "`journalctl -u rdsd | grep -A 40 panic`" + `). Others are served on. If it repeats, find
what the client or peer in the log line does that others do not.`,
		},
		{
			"RdsdMemoryNearLimit", `instance:rdsd_budget_used:ratio{budget="memory"} > 0.9`, "5m", Warning,
			"rdsd at {{ $labels.instance }} has little memory left",
			"More than nine tenths of limits.memory_bytes of {{ $labels.instance }} have been in use for five minutes. New work is refused soon, and ports become congested. A user who is alone comes to his share before, of datagrams at two thirds of the limit: RdsdLimitRefuses tells of that.",
			`
` + "`rdsd status`" + ` names the kinds (` + "`memory_…`" + `) and the largest holders, as ` + "`rdsd_memory_holder_bytes`" + ` and the Node dashboard do.
One user: look at what he has open (` + "`rdsd sockets`" + `). Unread datagrams (` + "`memory_received`" + `): find the reader
(` + "`rdsd congestion`" + `). All of them: raise ` + "`limits.memory_bytes`" + `, and ` + "`MemoryMax`" + ` with it.`,
		},
		{
			"RdsdLimitRefuses", `sum by (job, instance, budget) (increase(rdsd_budget_refused_total[5m])) > 0`, "5m", Warning,
			"the limit {{ $labels.budget }} of rdsd at {{ $labels.instance }} refuses work",
			"The limit {{ $labels.budget }} of {{ $labels.instance }} has refused something at least twice within ten minutes, and within the last five. The section Limits of the documentation says what whom it refuses gets.",
			`
[Limits](operations.md#limits) says which key the limit has and what whom it refuses gets. If one user or peer uses it
(` + "`rdsd sockets`, `rdsd peers`" + `), that is where to look; else raise it under ` + "`[limits]`" + `.`,
		},
		{
			"RdsdDescriptorsNearLimit", `instance:rdsd_budget_used:ratio{budget="descriptors"} > 0.9`, "5m", Warning,
			"rdsd at {{ $labels.instance }} has few file descriptors left",
			"More than nine tenths of the file descriptors that clients of {{ $labels.instance }} may have are open. Clients are refused first, then administrators, then links.",
			`
[Limits](operations.md#limits) says what costs how many. Raise ` + "`LimitNOFILE`" + ` of the unit, and
` + "`limits.max_descriptors`" + ` if it is set, or find who has so many sockets (` + "`rdsd sockets`" + `).`,
		},
		{
			"RdsdAcceptErrors", `increase(rdsd_accept_errors_total[5m]) > 0`, "", Warning,
			"rdsd at {{ $labels.instance }} cannot accept connections",
			"A listener of {{ $labels.instance }} could not accept for want of descriptors or memory. It goes on trying.",
			`
The log names the listener and the error. ` + "`EMFILE`" + ` and ` + "`ENFILE`" + `: as for [RdsdDescriptorsNearLimit](#rdsddescriptorsnearlimit), or
the machine's ` + "`fs.file-max`" + `. ` + "`ENOMEM`, `ENOBUFS`" + `: the machine itself is out of memory.`,
		},
		{
			"RdsdLogLost", `increase(rdsd_log_lost_total[15m]) > 0`, "", Info,
			"rdsd at {{ $labels.instance }} loses log lines",
			"Nobody reads the log of {{ $labels.instance }} fast enough, or its disk stands still. The daemon does not wait for it.",
			`
Look at who reads standard error: under systemd the journal, whose disk may be full or slow (` + "`journalctl --disk-usage`" + `).`,
		},
		{
			"RdsdVersionsDiffer", `count by (job) (count by (job, version) (rdsd_build_info)) > 1`, "1h", Info,
			"not all daemons of {{ $labels.job }} have the same version",
			"Daemons of {{ $labels.job }} have run different versions for an hour. They understand each other; clients and their daemon have to be of one version for rings.",
			`
An upgrade has stopped half way: ` + "`count by (version, instance) (rdsd_build_info)`" + ` says where.`,
		},
	}
}

func datagramAlerts() []Alert {
	return []Alert{
		{
			"RdsdPeerUnreachable", `rdsd_peer_up == 0 and rdsd_peer_waiting_datagrams > 0`, "2m", Critical,
			"{{ $labels.instance }} cannot reach {{ $labels.peer }}",
			"Datagrams wait on {{ $labels.instance }} ({{ $labels.local }}) for {{ $labels.peer }}, to which no path has been up for two minutes.",
			`
` + "`rdsd peers --paths`" + ` shows the last error of each lane. *Connection refused*: no daemon or kernel listens there, or another
` + "`rds.port`" + `. Nothing comes back: a firewall drops port 16385, or the machine is off. The handshake is not answered:
the peer's ` + "`[[peers]]`" + ` do not allow this address. What waits is sent once a lane is up;
` + "`rdsd cancel`" + ` gives it up.`,
		},
		{
			"RdsdPortCongested", `rdsd_congested_port_age_seconds{side="reader"} > 60`, "", Warning,
			"port {{ $labels.port }} of {{ $labels.address }} has been congested for a minute",
			"Nobody reads port {{ $labels.port }} of {{ $labels.address }} ({{ $labels.instance }}) fast enough. Sends to it are refused or wait on every node.",
			`
The Congestion dashboard, and ` + "`rdsd congestion`" + ` on that node, name the user and process that should read it and the senders
that fill it. If the process hangs, that is the fault (` + "`strace -p PID`, `py-spy dump`" + `, a stack). If it is slow and reads all the
time, it needs a larger receive buffer (` + "`rds.recv_buffer_bytes`" + ` or what it asks for) for bursts, or less to read. A congested
port delays nobody but those who send to it; a kernel's link is paused as a whole when its receiver is full
(` + "`rdsd_read_paused_total`" + `).`,
		},
		{
			"RdsdOutcomesUnknown", `increase(rdsd_outcome_unknown_total[5m]) > 0`, "", Warning,
			"datagrams sent by {{ $labels.instance }} have unknown outcomes",
			"A peer of {{ $labels.instance }} ended its life before it had acknowledged datagrams, which it may or may not have delivered.",
			`
A peer restarted, or an address was taken from a node
([what a restart does](operations.md#what-a-restart-does-to-peers)): ` + "`rdsd_peer_restarted_total`" + ` and the Restarts marks of the
dashboards say when. Applications that ask for outcomes know which datagrams; others may send twice what must arrive.`,
		},
		{
			// One for each lane, of which a peer has up to eight: a peer that is started again loses them all.
			"RdsdLinksFlap", `increase(rds_peer_conn_reset_total[10m]) > 5 * clamp_min(max_over_time(rdsd_peer_paths_up[10m]), 1)`, "", Warning,
			"links between {{ $labels.instance }} and {{ $labels.peer }} are lost again and again",
			"Each of the links between {{ $labels.instance }} ({{ $labels.local }}) and {{ $labels.peer }} was lost more than five times in ten minutes.",
			`
The log lines ` + "`msg=path`" + ` with ` + "`state=Error`" + ` say why. A peer that is started again loses each of its links (` + "`rdsd_peer_paths_up`" + `) once. *The peer fell silent*
(` + "`rdsd_heartbeat_lost_total`" + `): the network loses packets, or the peer has no processor. Both addresses connect: two daemons
use one address.`,
		},
		{
			"RdsdProtocolErrors", `increase(rdsd_protocol_error_total[15m]) > 0`, "", Warning,
			"a peer of {{ $labels.instance }} breaks the protocol",
			"{{ $labels.instance }} reset a link because what came over it was wrong.",
			`
` + "`rdsd_peer_protocol_error_total`" + ` names the peer, the log what was wrong. A bug of either side, or something that is no RDS and connects to
port 16385. A wrong checksum (` + "`rds_recv_drop_bad_checksum_total`" + `) is memory or a network device that changes bytes.`,
		},
		{
			"RdsdNobodyHasPort", `rate(rds_recv_drop_no_sock_total[5m]) > 1`, "10m", Info,
			"datagrams come to {{ $labels.instance }} for ports that nobody has",
			"More than one datagram a second has come to {{ $labels.instance }} for ports without a socket, for ten minutes.",
			`
A receiver is not started, or a sender has the wrong port. ` + "`rds_peer_recv_drop_no_sock_total`" + ` names the sender's node; an rdsd there
reports the failure to its sender, a kernel does not.`,
		},
		{
			"RdsdQueueingSlow", `instance:rdsd_queueing_seconds:p99_rate5m > ` + second, "10m", Warning,
			"datagrams wait long in rdsd at {{ $labels.instance }}",
			"One datagram in a hundred has waited more than about a second in {{ $labels.instance }} before its first byte left.",
			`
Links are full or without credit (Full links, Links without credit on the dashboards): a peer or the network is slow. A thread ` + "`rdsd/0`" + ` at 100 %
(` + "`top -H`" + `): more [threads](operations.md#threads-and-processors-reactor).`,
		},
		{
			"RdsdHostileClient", `increase(rdsd_rings_hostile_total[15m]) > 0`, "", Warning,
			"a client of {{ $labels.instance }} wrote nonsense into its rings",
			"{{ $labels.instance }} closed a socket because of what stood in its rings: a client with a bug that writes into memory at random, or one that tries something.",
			`
The log names its uid and pid. Nobody else is touched by it. Update the SDK that it uses; look for writes behind the end of a buffer.`,
		},
	}
}

func volumeAlerts() []Alert {
	return []Alert{
		{
			"RdsdMappingNotOpen", `rdsd_mapping_open == 0`, "1m", Critical,
			"volume {{ $labels.volume }} of {{ $labels.node }} is not usable on {{ $labels.instance }}",
			"Requests to the mapped volume {{ $labels.mapping }} on {{ $labels.instance }} have waited, or failed, for a minute.",
			`
` + "`rdsd volume check`" + ` and ` + "`rdsd volume paths`" + ` say whether paths are down or the other node has it no more
([volumes.md](volumes.md#what-to-do-when)).`,
		},
		{
			"RdsdExportNotOpen", `rdsd_export_failed == 1`, "1m", Critical,
			"the store of export {{ $labels.export }} on {{ $labels.instance }} cannot be opened",
			"Nobody can use the export {{ $labels.export }} of {{ $labels.instance }}: its file or device could not be opened.",
			`
` + "`rdsd volume ls`" + ` shows its state, the log the error: the file is not there, not readable for the user of the daemon, or used by another; or it could not be taken up at the start, as where
` + "`volumes.max_exports`" + ` is lower than it was.
It is tried again when a session asks for it, and every 30 s until it can be opened. A store that no session asks for is not looked at;
` + "`rdsd volume check`" + ` does that.`,
		},
		{
			"RdsdVolumeStalled", `rdsd_mapping_oldest_request_seconds > 30 and rdsd_mapping_open == 1`, "1m", Critical,
			"volume {{ $labels.mapping }} on {{ $labels.instance }} stands still",
			"For a minute a request to the volume {{ $labels.volume }} of {{ $labels.node }} has been unanswered for more than 30 seconds, though {{ $labels.instance }} has a path. Programs that use it wait.",
			`
` + "`rdsd check`" + ` on the exporting node says whether its store stands still (` + "`rdsd_export_oldest_request_seconds`" + `,
[RdsdExportStalled](#rdsdexportstalled)). If not, look at ` + "`rdsd volume sessions`" + ` here: requests of other volumes may hold all permits of
the session, or wait for a fence. With ` + "`on_loss = \"wait\"`" + ` nothing fails, and requests go on when the store does.
` + "`rdsd_volume_session_request_timeouts_total`" + ` counts how often that was so.`,
		},
		{
			"RdsdExportStalled", `rdsd_export_oldest_request_seconds > 30`, "1m", Critical,
			"the store of export {{ $labels.export }} on {{ $labels.instance }} stands still",
			"For a minute a request to the store of {{ $labels.export }} on {{ $labels.instance }} has not completed for more than 30 seconds. Whoever has mapped it waits.",
			`
Its disk, or the network that it is behind, does not answer: ` + "`dmesg`, `smartctl`, `iostat -x`" + ` there. Requests go on by
themselves when it does. A flush of much that was written may take so long on a slow disk: then there are more writes than it takes.`,
		},
		{
			"RdsdVolumePathDown", `rdsd_volume_path_up{role="client"} == 0`, "2m", Warning,
			"a path of {{ $labels.session }} from {{ $labels.instance }} to {{ $labels.destination }} is down",
			"{{ $labels.instance }} has not reached {{ $labels.destination }} over this path ({{ $labels.transport }}) for two minutes. The session goes on over others, if it has any.",
			`
` + "`rdsd volume paths`" + ` shows the last error and when it is tried again. TCP port 16388, and UDP port 4791 for paths over RDMA, must be open
between the nodes, and the exporting node must allow this one (` + "`[[peers]]`, `volumes.allow`" + `).`,
		},
		{
			"RdsdVolumeErrors", `increase(rdsd_mapping_request_errors_total[5m]) > 0`, "", Critical,
			"requests to volume {{ $labels.volume }} fail on {{ $labels.instance }}",
			"Operations ({{ $labels.op }}) on the mapped volume {{ $labels.mapping }} of {{ $labels.instance }} have failed. File systems on it may have become read-only.",
			`
` + "`rdsd_export_request_errors_total`" + ` of the exporting node grows, too: its store fails, look at its disk (` + "`dmesg`, `smartctl`" + `) and at
free space. Else paths were lost for longer than the mapping waits (` + "`on_loss`" + `): see [RdsdVolumePathDown](#rdsdvolumepathdown). After a failed
flush a volume has to be mapped anew ([volumes.md](volumes.md)).`,
		},
		{
			"RdsdVolumeFailovers", `sum by (job, instance, session) (increase(rdsd_volume_path_failovers_total[15m])) > 0`, "", Info,
			"requests of {{ $labels.session }} on {{ $labels.instance }} changed their path",
			"A path of {{ $labels.session }} was lost and its requests were sent again over another. Nothing was lost; there is less redundancy until it is back.",
			`
Which path it was: ` + "`rdsd_volume_path_reconnects_total`" + ` and the log. If it happens often, the network between the two addresses loses packets
or the other daemon stands still for longer than the heartbeat allows.`,
		},
		{
			"RdsdVolumeSlow", `instance:rdsd_mapping_request_seconds:p99_rate5m > ` + second, "10m", Warning,
			"volume {{ $labels.mapping }} on {{ $labels.instance }} is slow",
			"One {{ $labels.op }} in a hundred to the mapped volume {{ $labels.mapping }} has taken more than about a second for ten minutes.",
			`
Compare with the export's own time (Latency of Exports on the Volumes dashboard): if that is long, the store is slow, or others of
that node stand still and have its workers ([RdsdExportStalled](#rdsdexportstalled) there). Else the path is: its round trip,
requests that wait for a permit (` + "`rdsd_volume_session_requests_waiting`" + `), the processors of both nodes.`,
		},
	}
}
