package bench

import "time"

// programs by name. Each runs for about the time it is given.
var programs = map[string]func(time.Duration) (sample, error){
	// Baselines.
	"TCP ping-pong, blocking, two cores":              tcpTrip(64, true, [2]int{1, 2}),
	"TCP ping-pong, blocking, one core":               tcpTrip(64, true, [2]int{1, 1}),
	"TCP ping-pong, spinning":                         tcpTrip(64, false, [2]int{1, 2}),
	"packed TCP frames, 64 B":                         tcpWay(64, 64<<10, socketBuf),
	"packed TCP frames, 48 + 64 B":                    tcpWay(104, 128<<10, 0),
	"packed TCP frames, 64 KiB":                       tcpWay(65536-8, 256<<10, 0),
	"TCP to one, 64 KiB a write":                      spreadTCP(1, 64<<10),
	"TCP to 1,000, 16 KiB a write":                    spreadTCP(1000, 16<<10),
	"relay, round trip":                               relayTrip(64, 0),
	"relay, round trip each millisecond":              relayTrip(64, time.Millisecond),
	"relay, 64 B":                                     relayWay(64),
	"relay, 1 KiB":                                    relayWay(1 << 10),
	"relay, 64 KiB":                                   relayWay(64 << 10),
	"relay, 1 MiB":                                    relayWay(1 << 20),
	"relay, round trip beside a 1 MiB load":           relayTripLoad(64, 1<<20),
	"two processes, one ring each way":                pairTrip(64),
	"bare local relay, round trip":                    localTrip(64),
	"bare local relay, 64 B":                          localWay(64),
	"bare gRPC hop, 64 × 64 B":                        grpcWay(64, 64),
	"bare gRPC hop, 64 B":                             grpcWay(64, 1),
	"bare gRPC hop, round trip":                       grpcTrip(64),
	"two gRPC hops and TCP, round trip":               grpcRelayTrip(64),
	"one-sided links over TCP, 64 KiB":                oneSidedWay(overTCP, 64<<10, 0, false),
	"one-sided links over TCP, round trip":            oneSidedTrip(overTCP, 64),
	"bare RoCEv2, 64 KiB":                             bareRoCE(64<<10, 4096, false),
	"bare RoCEv2, 64 KiB, MTU 1024":                   bareRoCE(64<<10, 1024, false),
	"bare RoCEv2, 64 KiB, packet by packet":           bareRoCE(64<<10, 4096, true),
	"bare RoCEv2, 64 KiB, MTU 1024, packet by packet": bareRoCE(64<<10, 1024, true),

	// Others, where they are installed.
	"Aeron, round trip":          aeronTrip(64),
	"Aeron, 64 B, MTU 8 KiB":     aeronWay(64, 8<<10),
	"Aeron, 64 B, MTU 64 KiB":    aeronWay(64, 64<<10),
	"Aeron IPC, round trip":      aeronIPC(64, [2]string{"pong", "ping"}),
	"Aeron IPC, 64 B":            aeronIPC(64, [2]string{"send", "recv"}),
	"Aeron IPC, 64 KiB":          aeronIPC(aeronLargest, [2]string{"send", "recv"}),
	"NATS leaf pair, round trip": natsPair(roleNATSEcho, roleNATSPing),
	"NATS leaf pair, 64 B":       natsPair(roleNATSSend, roleNATSRecv),
	"ZeroMQ, 64 B":               zmqWay(64),
	"ZeroMQ, 1 KiB":              zmqWay(1 << 10),
	"ZeroMQ, 64 KiB":             zmqWay(64 << 10),

	// rdsd. Two nodes, or one that both applications use.
	"rdsd, round trip":                    rdsdTrip(64, 0, rings, nodeA, nodeB),
	"rdsd, round trip each millisecond":   rdsdTripPaused(64, 0, time.Millisecond, rings, nodeA, nodeB),
	"rdsd, round trip under 1 MiB load":   rdsdTrip(64, 1<<20, rings, nodeA, nodeB),
	"rdsd, 64 B":                          rdsdWay(64, rings, nodeA, nodeB),
	"rdsd, 1 KiB":                         rdsdWay(1<<10, rings, nodeA, nodeB),
	"rdsd, 64 KiB":                        rdsdWay(64<<10, rings, nodeA, nodeB),
	"rdsd, 1 MiB":                         rdsdWay(1<<20, rings, nodeA, nodeB),
	"rdsd, Send and Recv, 64 B":           rdsdCalls("one", 1, 64, rings),
	"rdsd, Send and Recv, 16 to 256 B":    rdsdMixed(256, rings),
	"rdsd, Send and Recv, 64 KiB":         rdsdCalls("one", 1, 64<<10, rings),
	"rdsd, SendBatch and RecvBatch, 64 B": rdsdCalls("batch", 64, 64, rings),
	"rdsd, 64 B, watched":                 watched(func(w *world, ds []*daemon) (*proc, error) { return w.flow(ds, 64, rings, 4000) }),
	"rdsd, round trip, watched":           watched(func(w *world, ds []*daemon) (*proc, error) { return w.pings(ds, 64, 0, 0, rings) }),
	"rdsd, one node, round trip":          oneNode("off", func(w *world, ds []*daemon) (*proc, error) { return w.pings(ds, 64, 0, 0, rings) }),
	"rdsd, one node, 64 B":                oneNode("off", func(w *world, ds []*daemon) (*proc, error) { return w.flow(ds, 64, rings, 4000) }),
	"rdsd, a pair, round trip":            oneNode("auto", func(w *world, ds []*daemon) (*proc, error) { return w.pings(ds, 64, 0, 0, rings) }),
	"rdsd, a pair, 64 B":                  oneNode("auto", func(w *world, ds []*daemon) (*proc, error) { return w.flow(ds, 64, rings, 4000) }),
	"rdsd, a pair, 64 KiB":                oneNode("auto", func(w *world, ds []*daemon) (*proc, error) { return w.flowBy("batch", 4, ds, 64<<10, rings, 4000) }),
	"rdsd, gRPC, round trip":              rdsdTrip(64, 0, "grpc", nodeA, nodeB),
	"rdsd, gRPC, 64 B":                    rdsdWay(64, "grpc", nodeA, nodeB),
	"rdsd, gRPC, Send and Recv, 64 B":     rdsdCalls("one", 1, 64, "grpc"),
	"rdsd, gRPC, one caller, 64 B":        rdsdCalls("batch", 64, 64, "grpc"),
	"rdsd, gRPC, 64 KiB":                  rdsdWay(64<<10, "grpc", nodeA, nodeB),
	"rdsd, gRPC, 1 MiB":                   rdsdWay(1<<20, "grpc", nodeA, nodeB),
	"rdsd, 64 B from 8 processes":         rdsdFanIn(8, 1, 64),
	"rdsd, 64 B from 100 sockets in turn": rdsdFanIn(1, 100, 64),
	"rdsd, 100 readers":                   rdsdMany(100, false, rings),
	"rdsd, 100 readers, one stopped":      rdsdMany(100, true, rings),
	"rdsd, Python sends batches":          pythonWay("send"),
	"rdsd, Python sends one by one":       pythonWay("send-one"),
	"rdsd, Python receives batches":       pythonWay("recv"),
	"rdsd, Python receives one by one":    pythonWay("recv-one"),
	"rdsd stress, depth 1":                rdsdStress(64),
	"plain C, a datagram and its answer":  plainPairs(64),
	"rdsd, one peer":                      rdsdPeers(1, 256, rings),
	"rdsd, 1,000 peers":                   rdsdPeers(1000, 256, rings),
	"rdsd, one peer, 1,024 at once":       rdsdPeers(1, 1024, rings),
	"rdsd, 1,000 peers, 1,024 at once":    rdsdPeers(1000, 1024, rings),
	"rdsd, 1,000 idle peers and sockets":  rdsdIdle(1000, 1000, rings),
	"rdsd, core to core, 64 B":            nodeFigure("core64", time.Minute),
	"rdsd, core to core, 64 KiB":          nodeFigure("core64k", time.Minute),
	"rdsd, idle peers":                    nodeFigure("idle", 5*time.Minute),

	roceWay:                                         oneSidedWay(overRoCE, 64<<10, 4096, false),
	roceWay + ", MTU 1024":                          oneSidedWay(overRoCE, 64<<10, 1024, false),
	roceWay + ", packet by packet":                  oneSidedWay(overRoCE, 64<<10, 4096, true),
	roceWay + ", MTU 1024, packet by packet":        oneSidedWay(overRoCE, 64<<10, 1024, true),
	roceWay + ", 0.1 % lost":                        oneSidedLossy(64<<10, 4096, 0.001, lossMessage),
	roceWay + ", 0.1 % of packets lost":             oneSidedLossy(64<<10, 4096, 0.001, lossPacket),
	"rdsd, one-sided links over RoCEv2, round trip": oneSidedTrip(overRoCE, 64),
}

// nodePrograms need the test binary of package node.
var nodePrograms = map[string]bool{"rdsd, core to core, 64 B": true, "rdsd, core to core, 64 KiB": true, "rdsd, idle peers": true}

// once are the programs that take long and vary little.
var once = map[string]bool{"rdsd, idle peers": true, "rdsd, 1,000 idle peers and sockets": true}

const (
	// aeronLargest is the largest message that Aeron claims in place: a frame of its largest
	// MTU without the header.
	aeronLargest = 65504 - 32

	rings = "rings"
	nodeA = "127.0.0.81"
	nodeB = "127.0.0.82"
)

// What is taken from a sample.
var (
	p50  = metric{"µs", func(s sample) float64 { return micros(s.p50) }}
	p99  = metric{"µs", func(s sample) float64 { return micros(s.p99) }}
	p999 = metric{"µs", func(s sample) float64 { return micros(s.p999) }}
	mega = metric{"M/s", func(s sample) float64 { return s.rate / 1e6 }}
	cpu  = metric{"s a million", func(s sample) float64 { return s.cpu }}
	objs = metric{"a datagram", func(s sample) float64 { return s.allocs }}
	busy = metric{"% of a core", func(s sample) float64 { return 100 * s.busy }}
	kib  = metric{"KiB", func(s sample) float64 { return s.rate }}

	gb64k = gigabytes(64 << 10)
	gb1m  = gigabytes(1 << 20)
)

// unwatched is a metric of the windows of a watched program in which nobody looked.
func unwatched(m metric) *metric {
	return &metric{m.unit, func(s sample) float64 { return m.of(*s.unwatched) }}
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

func gigabytes(bytes int) metric {
	return metric{"GB/s", func(s sample) float64 { return s.rate * float64(bytes) / 1e9 }}
}

const (
	trip     = "rdsd, round trip"
	tripLoad = "rdsd, round trip under 1 MiB load"
	way64    = "rdsd, 64 B"
	naive64  = "rdsd, Send and Recv, 64 B"
	batch64  = "rdsd, SendBatch and RecvBatch, 64 B"
	roceWay  = "rdsd, one-sided links over RoCEv2, 64 KiB"
)

// none is as good as no allocation: it leaves room for timers, the collector
// and two looks at the metrics.
const none = 0.001

// allRows is the report. A row without a bar is there for orientation.
var allRows = []row{
	{name: "trip-p50", what: "round trip 64 B, p50", ours: trip, metric: p50, base: "relay, round trip", most: true, bar: 1.25},
	{name: "trip-p50-aeron", what: "the same against Aeron, two drivers", ours: trip, metric: p50, base: "Aeron, round trip", most: true, bar: 1},
	{name: "trip-p50-nats", what: "the same against a NATS leaf pair", ours: trip, metric: p50, base: "NATS leaf pair, round trip", most: true, bar: 1},
	{name: "trip-p99", what: "its p99, against its p50", ours: trip, metric: p99, base: trip, baseOf: &p50, most: true, bar: 4},
	{name: "trip-p999", what: "its p99.9, against its p50", ours: trip, metric: p999, base: trip, baseOf: &p50, most: true, bar: 10},
	{name: "trip-p99-relay", what: "p99 against the relay's p99", ours: trip, metric: p99, base: "relay, round trip", most: true, bar: 1.5},
	{name: "trip-p999-relay", what: "p99.9 against the relay's p99.9", ours: trip, metric: p999, base: "relay, round trip", most: true, bar: 1.5},
	{name: "trip-paused", what: "round trip 64 B, a millisecond between two, p50", ours: "rdsd, round trip each millisecond", metric: p50,
		base: "relay, round trip each millisecond", most: true, bar: 1.2},
	{name: "trip-load", what: "round trip 64 B while 1 MiB datagrams saturate the same peer, p99", ours: tripLoad, metric: p99, most: true, bar: 1000},
	{name: "trip-load-relay", what: "the same against a relay beside another one that carries 1 MiB", ours: tripLoad, metric: p99,
		base: "relay, round trip beside a 1 MiB load", most: true},
	{name: "stress-1", what: "rdsd stress, 64 B and 64 B back, --depth 1, one task, against a plain C program that calls rdsd_send and rdsd_recv in turn", ours: "rdsd stress, depth 1",
		metric: kilo, base: "plain C, a datagram and its answer", bar: 1},
	{name: "way-64", what: "one way 64 B", ours: way64, metric: mega, base: "relay, 64 B", bar: 0.5},
	{name: "way-64-aeron8k", what: "the same against Aeron, MTU 8 KiB", ours: way64, metric: mega, base: "Aeron, 64 B, MTU 8 KiB", bar: 1.1},
	{name: "way-64-aeron64k", what: "the same against Aeron, MTU 64 KiB", ours: way64, metric: mega, base: "Aeron, 64 B, MTU 64 KiB"},
	{name: "way-64-zeromq", what: "the same against ZeroMQ", ours: way64, metric: mega, base: "ZeroMQ, 64 B", bar: 3},
	{name: "naive-64", what: "one way 64 B, Send and Recv, one caller each side, against zmq_send and zmq_recv, one caller each side", ours: naive64,
		metric: mega, base: "ZeroMQ, 64 B", bar: 2},
	{name: "naive-64-aeron8k", what: "the same against Aeron's offers one by one, one caller each side, MTU 8 KiB", ours: naive64, metric: mega,
		base: "Aeron, 64 B, MTU 8 KiB", bar: 0.8},
	{name: "naive-cpu-64", what: "its CPU seconds a million, all four processes", ours: naive64, metric: cpu, most: true},
	{name: "naive-mixed", what: "one way, lengths drawn from 16 to 256 B, Send and Recv, one caller each side, against naive-64", ours: "rdsd, Send and Recv, 16 to 256 B",
		metric: mega, base: naive64, bar: 0.7},
	{name: "naive-mixed-cpu", what: "its CPU seconds a million, all four processes, against those of naive-64", ours: "rdsd, Send and Recv, 16 to 256 B", metric: cpu, base: naive64, most: true},
	{name: "naive-64k", what: "one way 64 KiB, Send and Recv, against zmq_send and zmq_recv", ours: "rdsd, Send and Recv, 64 KiB", metric: gb64k,
		base: "ZeroMQ, 64 KiB", bar: 1.5},
	{name: "b64-64-aeron8k", what: "one way 64 B, SendBatch and RecvBatch of 64, one caller each side, against Aeron's offers one by one, MTU 8 KiB", ours: batch64,
		metric: mega, base: "Aeron, 64 B, MTU 8 KiB", bar: 1.2},
	{name: "b64-64-way", what: "the same against way-64, batches of 256 that are borrowed", ours: batch64, metric: mega, base: way64, bar: 0.7},
	{name: "fan-in-8", what: "64 B from 8 processes to one socket, SendBatch of 256 and Borrow, against one pair", ours: "rdsd, 64 B from 8 processes", metric: mega, base: way64, bar: 0.7},
	{name: "fan-in-100", what: "64 B from 100 sockets of one process in turn to one socket, against one pair", ours: "rdsd, 64 B from 100 sockets in turn", metric: mega, base: way64, bar: 0.7},
	{name: "way-64-nats", what: "the same against a NATS leaf pair", ours: way64, metric: mega, base: "NATS leaf pair, 64 B", bar: 10},
	{name: "way-1k", what: "one way 1 KiB", ours: "rdsd, 1 KiB", metric: mega, base: "relay, 1 KiB", bar: 0.8},
	{name: "way-1k-zeromq", what: "the same against ZeroMQ", ours: "rdsd, 1 KiB", metric: mega, base: "ZeroMQ, 1 KiB", bar: 4},
	{name: "way-64k", what: "one way 64 KiB", ours: "rdsd, 64 KiB", metric: gb64k, base: "relay, 64 KiB", bar: 0.9},
	{name: "way-64k-grpc", what: "the same against rdsd's own gRPC", ours: "rdsd, 64 KiB", metric: gb64k, base: "rdsd, gRPC, 64 KiB", bar: 3},
	{name: "way-1m", what: "one way 1 MiB", ours: "rdsd, 1 MiB", metric: gb1m, base: "relay, 1 MiB", bar: 0.85},
	{name: "way-1m-grpc", what: "the same against rdsd's own gRPC", ours: "rdsd, 1 MiB", metric: gb1m, base: "rdsd, gRPC, 1 MiB", bar: 3},
	{name: "local-trip", what: "one node, by a pair, round trip 64 B, p50", ours: "rdsd, a pair, round trip", metric: p50,
		base: "two processes, one ring each way", most: true, bar: 2.2},
	{name: "local-trip-aeron", what: "the same against Aeron IPC", ours: "rdsd, a pair, round trip", metric: p50, base: "Aeron IPC, round trip", most: true, bar: 2},
	{name: "local-trip-daemon", what: "one node without pairs, ring to daemon to ring, round trip 64 B, p50", ours: "rdsd, one node, round trip", metric: p50,
		base: "two processes, one ring each way", most: true, bar: 2.2},
	{name: "local-way", what: "one node, by a pair, one way 64 B", ours: "rdsd, a pair, 64 B", metric: mega, bar: 15},
	{name: "local-way-aeron", what: "the same against Aeron IPC", ours: "rdsd, a pair, 64 B", metric: mega, base: "Aeron IPC, 64 B", bar: 1},
	{name: "local-way-64k-aeron", what: "one node, by a pair, one way 64 KiB, SendBatch and RecvBatch of 4, against Aeron IPC", ours: "rdsd, a pair, 64 KiB", metric: gb64k,
		base: "Aeron IPC, 64 KiB", bar: 0.8},
	{name: "local-way-daemon", what: "one node, ring to daemon to ring, one way 64 B", ours: "rdsd, one node, 64 B", metric: mega, bar: 15},
	{name: "local-trip-relay", what: "the round trip against a bare relay of three processes", ours: "rdsd, one node, round trip", metric: p50,
		base: "bare local relay, round trip", most: true},
	{name: "local-way-relay", what: "one way against it", ours: "rdsd, one node, 64 B", metric: mega, base: "bare local relay, 64 B"},
	{name: "cpu-64", what: "CPU seconds a million 64 B datagrams, all four processes", ours: way64, metric: cpu, most: true, bar: 0.15},
	{name: "cpu-64-relay", what: "the same against the relay", ours: way64, metric: cpu, base: "relay, 64 B", most: true},
	{name: "allocs-64", what: "allocations in both daemons, 64 B", ours: way64, metric: objs, most: true, bar: none},
	{name: "watched-64", what: "one way 64 B with three pages open, top, and a scrape of both nodes each second, against without, by turns in the same processes",
		ours: "rdsd, 64 B, watched", metric: mega, base: "rdsd, 64 B, watched", baseOf: unwatched(mega), bar: 0.98},
	{name: "watched-trip", what: "round trip 64 B, p50, beside the same", ours: "rdsd, round trip, watched", metric: p50,
		base: "rdsd, round trip, watched", baseOf: unwatched(p50), most: true, bar: 1.05},
	{name: "watched-cpu", what: "of a core, what those take who look: they share the processors", ours: "rdsd, round trip, watched", metric: busy, most: true},
	{name: "python-send", what: "Python over rings, 64 B, sent in batches", ours: "rdsd, Python sends batches", metric: mega, bar: 1},
	{name: "python-recv", what: "received in batches", ours: "rdsd, Python receives batches", metric: mega, bar: 1},
	{name: "python-send-one", what: "sent one by one", ours: "rdsd, Python sends one by one", metric: mega, bar: 0.3},
	{name: "python-recv-one", what: "received one by one", ours: "rdsd, Python receives one by one", metric: mega, bar: 0.3},
	{name: "grpc", what: "gRPC, batches of 64 × 64 B, application to application", ours: "rdsd, gRPC, 64 B", metric: mega,
		base: "bare gRPC hop, 64 × 64 B", bar: 0.35},
	{name: "grpc-naive", what: "gRPC, one way 64 B, Send and Recv, one caller each side, against a bare stream whose Send and Recv are called one by one",
		ours: "rdsd, gRPC, Send and Recv, 64 B", metric: mega, base: "bare gRPC hop, 64 B", bar: 0.5},
	{name: "grpc-one", what: "gRPC, SendBatch and RecvBatch of 64 × 64 B, one caller each side, against row grpc, 64 callers", ours: "rdsd, gRPC, one caller, 64 B",
		metric: mega, base: "rdsd, gRPC, 64 B", bar: 0.7},
	{name: "grpc-trip", what: "gRPC, round trip 64 B, p50, one caller each side, against a bare stream's: one message there, one back",
		ours: "rdsd, gRPC, round trip", metric: p50, base: "bare gRPC hop, round trip", most: true, bar: 2.5},
	{name: "grpc-trip-cpu", what: "CPU seconds a million of these round trips, against the bare hops joined by TCP", ours: "rdsd, gRPC, round trip", metric: cpu,
		base: "two gRPC hops and TCP, round trip", most: true},
	{name: "grpc-trip-relay", what: "the same against what its shape costs: two bare gRPC hops joined by TCP", ours: "rdsd, gRPC, round trip", metric: p50,
		base: "two gRPC hops and TCP, round trip", most: true},
	{name: "grpc-trip-floor", what: "two bare gRPC hops joined by TCP, round trip 64 B, p50, against one bare stream's", ours: "two gRPC hops and TCP, round trip",
		metric: p50, base: "bare gRPC hop, round trip", most: true},
	{name: "peers", what: "1,000 simulated peers, traffic to all, against one", ours: "rdsd, 1,000 peers", metric: mega, base: "rdsd, one peer", bar: 0.7},
	{name: "peers-1024", what: "the same with batches of a whole train", ours: "rdsd, 1,000 peers, 1,024 at once", metric: mega, base: "rdsd, one peer, 1,024 at once"},
	{name: "peers-floor", what: "64 B in writes of 16 KiB to 1,000 bare connections, against one and 64 KiB", ours: "TCP to 1,000, 16 KiB a write", metric: mega,
		base: "TCP to one, 64 KiB a write"},
	{name: "stopped", what: "100 readers of one node, one of them stopped: rate of the other 99", ours: "rdsd, 100 readers, one stopped",
		metric: mega, base: "rdsd, 100 readers", bar: 0.9},
	{name: "core64", what: "core to core over TCP, 64 B", ours: "rdsd, core to core, 64 B", metric: mega, base: "packed TCP frames, 48 + 64 B", bar: 1. / 6},
	{name: "core64k", what: "core to core over TCP, 64 KiB", ours: "rdsd, core to core, 64 KiB", metric: gb64k, base: "packed TCP frames, 64 KiB", bar: 0.85},
	{name: "roce-way", what: "writes of 64 KiB one way, RoCEv2 in user space, MTU 4096, against framed TCP", ours: roceWay, metric: gb64k,
		base: "one-sided links over TCP, 64 KiB", bar: 0.45},
	{name: "roce-way-bare", what: "the same against its packets without a protocol", ours: roceWay, metric: gb64k, base: "bare RoCEv2, 64 KiB", bar: 0.7},
	{name: "roce-way-1024", what: "the same, MTU 1024, against framed TCP", ours: roceWay + ", MTU 1024", metric: gb64k,
		base: "one-sided links over TCP, 64 KiB", bar: 0.3},
	{name: "roce-way-1024-bare", what: "against its packets without a protocol", ours: roceWay + ", MTU 1024", metric: gb64k, base: "bare RoCEv2, 64 KiB, MTU 1024"},
	{name: "roce-way-packets", what: "packet by packet (no UDP_SEGMENT), MTU 4096, against its packets without a protocol", ours: roceWay + ", packet by packet", metric: gb64k,
		base: "bare RoCEv2, 64 KiB, packet by packet", bar: 0.7},
	{name: "roce-way-packets-1024", what: "the same, MTU 1024", ours: roceWay + ", MTU 1024, packet by packet", metric: gb64k,
		base: "bare RoCEv2, 64 KiB, MTU 1024, packet by packet", bar: 0.7},
	{name: "roce-cpu", what: "CPU seconds a million writes of 64 KiB, both processes, against framed TCP", ours: roceWay, metric: cpu, base: "one-sided links over TCP, 64 KiB", most: true},
	{name: "roce-cpu-1024", what: "the same, MTU 1024", ours: roceWay + ", MTU 1024", metric: cpu, base: "one-sided links over TCP, 64 KiB", most: true},
	{name: "roce-cpu-bare", what: "MTU 4096 against its packets without a protocol", ours: roceWay, metric: cpu, base: "bare RoCEv2, 64 KiB", most: true},
	{name: "roce-loss", what: "writes of 64 KiB one way, RoCEv2 in user space, MTU 4096, of which either socket loses 0.1 %, bursts as a whole, against nothing lost",
		ours: roceWay + ", 0.1 % lost", metric: gb64k, base: roceWay, bar: 0.5},
	{name: "roce-loss-packets", what: "the same where each packet of a burst counts: 1.5 % of bursts of fifteen are lost", ours: roceWay + ", 0.1 % of packets lost", metric: gb64k,
		base: roceWay},
	{name: "roce-trip", what: "write of 64 B and one back, RoCEv2 in user space, p50, against framed TCP", ours: "rdsd, one-sided links over RoCEv2, round trip", metric: p50,
		base: "one-sided links over TCP, round trip", most: true, bar: 1.5},
	{name: "idle-cpu", what: "the daemon with 1,000 idle peers and 1,000 idle sockets", ours: "rdsd, 1,000 idle peers and sockets", metric: busy, most: true, bar: 0.5},
	{name: "idle", what: "an idle peer of many, two lanes: heap and stacks, or resident memory", ours: "rdsd, idle peers", metric: kib, most: true, bar: 32},
	{name: "floor-tcp", what: "relay, round trip 64 B, p50", ours: "relay, round trip", metric: p50, base: "TCP ping-pong, blocking, two cores", most: true},
	{name: "floor-tcp-one", what: "the same against both ends on one core", ours: "relay, round trip", metric: p50, base: "TCP ping-pong, blocking, one core", most: true},
	{name: "floor-tcp-spin", what: "the same against ends that spin", ours: "relay, round trip", metric: p50, base: "TCP ping-pong, spinning", most: true},
	{name: "floor-packed", what: "relay, one way 64 B", ours: "relay, 64 B", metric: mega, base: "packed TCP frames, 64 B"},
	{name: "floor-grpc", what: "gRPC, round trip 64 B, p50", ours: "rdsd, gRPC, round trip", metric: p50, base: "relay, round trip", most: true},
}
