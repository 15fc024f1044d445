package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) queueCmd() *cobra.Command {
	var send, retrans, recv bool
	var limit uint32
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "show datagrams waiting to be sent, acknowledged or read",
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
			return a.admin(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
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
	cmd.Flags().Uint32Var(&limit, "limit", 1000, "show at most so many")
	return cmd
}

// fetchQueue lists the datagrams in queues of these kinds; none means all.
func fetchQueue(ctx context.Context, c *rdsd.Admin, limit uint32, kinds ...rdsd.QueueKind) (list []rdsd.QueuedDatagram, truncated bool, err error) {
	if len(kinds) == 0 {
		kinds = []rdsd.QueueKind{rdsd.QueueAll}
	}
	for _, k := range kinds {
		some, more, err := c.Queue(ctx, k, limit)
		if err != nil {
			return nil, false, err
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
