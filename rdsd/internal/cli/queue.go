package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func (a *app) queueCmd() *cobra.Command {
	var send, retrans, recv bool
	var limit uint32
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "show datagrams waiting to be sent, acknowledged or read",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var kinds []rdsdv1.QueueKind
			for _, k := range []struct {
				on   bool
				kind rdsdv1.QueueKind
			}{
				{send, rdsdv1.QueueKind_QUEUE_KIND_SEND},
				{retrans, rdsdv1.QueueKind_QUEUE_KIND_RETRANS},
				{recv, rdsdv1.QueueKind_QUEUE_KIND_RECV},
			} {
				if k.on {
					kinds = append(kinds, k.kind)
				}
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
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
func fetchQueue(ctx context.Context, c rdsdv1.AdminClient, limit uint32, kinds ...rdsdv1.QueueKind) ([]queueView, bool, error) {
	if len(kinds) == 0 {
		kinds = []rdsdv1.QueueKind{rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED}
	}
	var list []queueView
	truncated := false
	for _, k := range kinds {
		resp, err := c.ListQueue(ctx, rdsdv1.ListQueueRequest_builder{Kind: k, Limit: limit}.Build())
		if err != nil {
			return nil, false, err
		}
		truncated = truncated || resp.GetTruncated()
		for _, d := range resp.GetDatagram() {
			list = append(list, viewQueued(d))
		}
	}
	return list, truncated, nil
}

var queueColumns = []column[queueView]{
	{"queue", func(q queueView) any { return q.Queue }},
	{"local", func(q queueView) any { return endpointText(q.Local) }},
	{"remote", func(q queueView) any { return endpointText(q.Remote) }},
	{"seq", func(q queueView) any { return q.Seq }},
	{"bytes", func(q queueView) any { return q.Bytes }},
	{"lane", func(q queueView) any { return q.Lane }},
}
