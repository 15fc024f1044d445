package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) queueCmd() *cobra.Command {
	var send, retrans, recv, summary bool
	var limit uint32
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "show datagrams waiting to be sent, acknowledged or read",
		Long: `Show datagrams that wait, one a line, without what is in them. --summary adds up what
waits for each peer (send, retrans) and in each socket (recv), however many there are. What
waits before a congested port waits to be sent; its bytes are of the first 20,000 datagrams.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var kinds []rdsd.QueueKind
			for _, k := range []struct {
				on   bool
				kind rdsd.QueueKind
			}{
				{send, rdsd.QueueSend},
				{retrans, rdsd.QueueRetrans},
				{recv, rdsd.QueueRecv},
			} {
				if k.on {
					kinds = append(kinds, k.kind)
				}
			}
			if summary {
				return a.read(cmd.Context(), func(ctx context.Context, c source) error {
					list, err := sumQueues(ctx, c, kinds)
					if err != nil {
						return err
					}
					return printList(a, list, queueSumColumns, "no datagrams are queued")
				})
			}
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				list, truncated, err := fetchQueue(ctx, c, limit, kinds...)
				if err != nil {
					return err
				}
				if err := printList(a, list, queueColumns, "no datagrams are queued"); err != nil {
					return err
				}
				if truncated {
					fmt.Fprintf(a.err, "rdsd: only the first %d are shown; see --limit\n", len(list))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&send, "send", false, "waiting to be sent")
	cmd.Flags().BoolVar(&retrans, "retrans", false, "sent, not yet acknowledged")
	cmd.Flags().BoolVar(&recv, "recv", false, "received, not yet read")
	cmd.Flags().Uint32Var(&limit, "limit", queueLimit, "show at most so many")
	cmd.Flags().BoolVar(&summary, "summary", false, "add up by peer and by socket")
	return aList(a.reader(cmd))
}

// queueLimit is how many datagrams are shown unless --limit says otherwise.
const queueLimit = 1000

// fetchQueue lists the datagrams in queues of these kinds, at most limit of all of them; no kind means all.
func fetchQueue(ctx context.Context, c source, limit uint32, kinds ...rdsd.QueueKind) (list []rdsd.QueuedDatagram, truncated bool, err error) {
	if len(kinds) == 0 {
		kinds = []rdsd.QueueKind{rdsd.QueueAll}
	}
	if limit == 0 && len(kinds) > 1 {
		limit = queueLimit // what the daemon takes 0 for, of each kind
	}
	for _, k := range kinds {
		left := limit - min(limit, uint32(len(list)))
		ask := left
		if left == 0 && limit > 0 {
			ask = 1 // to learn whether there is any; 0 would ask for the daemon's default
		}
		some, more, err := c.Queue(ctx, k, ask)
		if err != nil {
			return nil, false, err
		}
		if ask != left {
			some, more = nil, more || len(some) > 0
		}
		list, truncated = append(list, some...), truncated || more
	}
	return list, truncated, nil
}

var queueColumns = []column[rdsd.QueuedDatagram]{
	{"queue", func(q rdsd.QueuedDatagram) any { return q.Queue }},
	{"local", func(q rdsd.QueuedDatagram) any { return endpointText(q.Local) }},
	{"remote", func(q rdsd.QueuedDatagram) any { return endpointText(q.Remote) }},
	{"seq", func(q rdsd.QueuedDatagram) any { return q.Seq }},
	{"bytes", func(q rdsd.QueuedDatagram) any { return bytesCount(q.Bytes) }},
	{"lane", func(q rdsd.QueuedDatagram) any { return q.Lane }},
}

// queueSum is what waits for one peer or in one socket.
type queueSum struct {
	Queue     rdsd.QueueKind `json:"queue"`
	Local     string         `json:"local"`  // the address of a peer's node; the socket, of recv
	Remote    string         `json:"remote"` // the peer; "" of recv
	Datagrams uint64         `json:"datagrams"`
	Bytes     uint64         `json:"bytes"`
}

var queueSumColumns = []column[queueSum]{
	{"queue", func(q queueSum) any { return q.Queue }},
	{"local", func(q queueSum) any { return q.Local }},
	{"remote", func(q queueSum) any { return orDash(q.Remote) }},
	{"datagrams", func(q queueSum) any { return q.Datagrams }},
	{"bytes", func(q queueSum) any { return bytesCount(q.Bytes) }},
}

// queueMost is how many datagrams a daemon lists at most.
const queueMost = 20000

// heldBytes are the bytes that wait to be sent to peers with a congested port, by local and remote address: a peer
// tells how many datagrams it is held up with, and not how large they are. Of more than can be listed it is what could be.
func heldBytes(ctx context.Context, c source, peers []rdsd.Peer, wanted bool) (map[[2]netip.Addr]uint64, error) {
	if !wanted || !slices.ContainsFunc(peers, func(p rdsd.Peer) bool { return p.Held > 0 }) {
		return nil, nil
	}
	list, _, err := c.Queue(ctx, rdsd.QueueSend, queueMost)
	sums := map[[2]netip.Addr]uint64{}
	for _, q := range list {
		sums[[2]netip.Addr{q.Local.Addr(), q.Remote.Addr()}] += q.Bytes
	}
	return sums, err
}

// sumQueues adds up what waits, the most first.
func sumQueues(ctx context.Context, c source, kinds []rdsd.QueueKind) ([]queueSum, error) {
	list := []queueSum{}
	add := func(s queueSum) {
		if s.Datagrams > 0 && (len(kinds) == 0 || slices.Contains(kinds, s.Queue)) {
			list = append(list, s)
		}
	}
	peers, err := c.Peers(ctx, rdsd.PeerFilter{})
	if err != nil {
		return nil, err
	}
	held, err := heldBytes(ctx, c, peers, len(kinds) == 0 || slices.Contains(kinds, rdsd.QueueSend))
	if err != nil {
		return nil, err
	}
	for _, p := range peers {
		bytes := max(p.QueuedBytes, held[[2]netip.Addr{p.Local, p.Remote}])
		add(queueSum{rdsd.QueueSend, addrText(p.Local), addrText(p.Remote), p.Queued + p.Held, bytes})
		add(queueSum{rdsd.QueueRetrans, addrText(p.Local), addrText(p.Remote), p.Unacked, p.UnackedBytes})
	}
	sockets, err := c.Sockets(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		add(queueSum{rdsd.QueueRecv, endpointText(s.Local), "", s.RecvQueued, s.RecvQueuedBytes})
	}
	slices.SortStableFunc(list, func(a, b queueSum) int { return cmp.Compare(b.Datagrams, a.Datagrams) })
	return list, nil
}
