package base

import (
	"log/slog"
	"sync/atomic"

	"github.com/rdsd/rdsd/internal/counters"
	"github.com/rdsd/rdsd/node/config"
)

// Counters are the counters of the front ends; those of the wire and of
// the sockets belong to the core. Names become rdsd_<name>_total.
type Counters struct {
	ClientsRefused     atomic.Uint64 `counter:"clients_refused" help:"client connections refused because of limits.max_clients or limits.max_clients_per_uid, or for want of file descriptors"`
	ClientsCostly      atomic.Uint64 `counter:"clients_costly" help:"clients that were ended because to wake all who watched their descriptors took too long"`
	DescriptorsRefused atomic.Uint64 `counter:"descriptors_refused" help:"connections and sockets refused because the process is near its limit of file descriptors"`
	AcceptErrors       atomic.Uint64 `counter:"accept_errors" help:"connections that could not be accepted for a while: no descriptor, no memory; the log names the listener"`
	CallsRateLimited   atomic.Uint64 `counter:"calls_rate_limited" help:"calls refused because their user made more than api.calls_per_second"`
	LogLost            atomic.Uint64 `counter:"log_lost" help:"log lines left out because nobody read the log, or its disk stood still"`
	LogSuppressed      atomic.Uint64 `counter:"log_suppressed" help:"log lines left out because of log.lines_per_second"`
	AdminDenied        atomic.Uint64 `counter:"admin_denied" help:"calls refused because the caller is no administrator"`
	BindsRefused       atomic.Uint64 `counter:"binds_refused" help:"binds refused, for any reason"`
	StreamErrors       atomic.Uint64 `counter:"stream_errors" help:"socket streams ended by the daemon because of a wrong message"`
	SendBatches        atomic.Uint64 `counter:"send_batches" help:"batches received from clients"`
	SendRejected       atomic.Uint64 `counter:"send_rejected" help:"datagrams of clients that were not accepted, for any reason"`
	RecvBatches        atomic.Uint64 `counter:"recv_batches" help:"batches pushed to clients"`
	RecvBatchDatagrams atomic.Uint64 `counter:"recv_batch_datagrams" help:"datagrams in batches pushed to clients"`
	PushStalls         atomic.Uint64 `counter:"push_stalls" help:"times a client had datagrams waiting and no credit left"`
	RingPosts          atomic.Uint64 `counter:"ring_posts" help:"descriptors taken from clients' send rings"`
	RingDatagrams      atomic.Uint64 `counter:"ring_datagrams" help:"datagrams in descriptors taken from clients' send rings"`
	RingRefused        atomic.Uint64 `counter:"ring_refused" help:"descriptors of clients that could not be sent at all"`
	RingWakes          atomic.Uint64 `counter:"ring_wakes" help:"times a sleeping client had to be woken by its doorbell"`
	PairsOffered       atomic.Uint64 `counter:"pairs_offered" help:"pairs offered to two sockets whose flow was busy"`
	PairsOpened        atomic.Uint64 `counter:"pairs_opened" help:"pairs that both sockets took: their flow goes without the daemon on the way"`
	PairsClosed        atomic.Uint64 `counter:"pairs_closed" help:"pairs closed again, for any reason: idle, a trace, a socket that was closed"`
	PairDatagrams      atomic.Uint64 `counter:"pair_datagrams" help:"datagrams that passed pairs, as their clients say"`
	PairWakes          atomic.Uint64 `counter:"pair_wakes" help:"times the daemon rang a reader that slept, for a sender of a pair"`
	RegionsGivenBack   atomic.Uint64 `counter:"regions_given_back_bytes" help:"memory of regions that nobody needed and the daemon gave back, because memory was short"`
	RegionsForgotten   atomic.Uint64 `counter:"regions_forgotten" help:"times the daemon let go of the pages of its clients' memory that it had touched, because memory was short"`
	RingsHostile       atomic.Uint64 `counter:"rings_hostile" help:"sockets closed because of what stood in their rings"`
}

// CounterTable is the Counters by name, for metrics and lists.
var CounterTable = counters.NewTable[Counters]()

// CostlyClient notes that a client is ended for what it costs to wake it.
func (c *Counters) CostlyClient(log *slog.Logger, id config.Identity, why error) {
	c.ClientsCostly.Add(1)
	log.Warn("a client is ended", "uid", id.UID, "pid", id.PID, "why", why)
}
