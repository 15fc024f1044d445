package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// infoView is everything a daemon tells, as `rdsd info --json` prints it.
type infoView struct {
	Status     statusView      `json:"status"`
	Peers      []peerView      `json:"peers"`
	Sockets    []socketView    `json:"sockets"`
	Queue      []queueView     `json:"queue"`
	Congestion []congestedView `json:"congestion"`
	Counters   []counterView   `json:"counters"`
}

func (a *app) infoCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "show everything: status, peers, sockets, queues, congestion, counters",
		Long: `Show everything the daemon knows, in one page; --json is the form to attach to
a report. Counters that are zero are left out of the page. For the layout of the
kernel's tool see 'rdsd rds-info'.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				v, err := fetchInfo(ctx, c)
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, v)
				}
				a.printStatus(v.Status)
				section(a, "Peers", v.Peers, peerColumns)
				section(a, "Paths", pathLines(v.Peers), pathColumns)
				section(a, "Sockets", v.Sockets, socketColumns)
				section(a, "Queued datagrams", v.Queue, queueColumns)
				section(a, "Congested ports", v.Congestion, congestedColumns)
				section(a, "Counters", keepNonzero(v.Counters), counterColumns[:2])
				return nil
			})
		},
	}
}

func section[T any](a *app, title string, items []T, cols []column[T]) {
	if len(items) == 0 {
		fmt.Fprintf(a.out, "\n%s: none\n", title)
		return
	}
	fmt.Fprintf(a.out, "\n%s:\n", title)
	writeTable(a.out, items, cols)
}

func fetchInfo(ctx context.Context, c rdsdv1.AdminClient) (infoView, error) {
	v := infoView{Peers: []peerView{}, Sockets: []socketView{}, Queue: []queueView{}, Congestion: []congestedView{}, Counters: []counterView{}}
	st, err := c.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	if err != nil {
		return v, err
	}
	v.Status = viewStatus(st)
	if l, err := fetchPeers(ctx, c, &rdsdv1.ListPeersRequest{}); err != nil {
		return v, err
	} else if l != nil {
		v.Peers = l
	}
	if l, err := fetchSockets(ctx, c); err != nil {
		return v, err
	} else if l != nil {
		v.Sockets = l
	}
	if l, _, err := fetchQueue(ctx, c, 0); err != nil {
		return v, err
	} else if l != nil {
		v.Queue = l
	}
	if l, err := fetchCongestion(ctx, c); err != nil {
		return v, err
	} else if l != nil {
		v.Congestion = l
	}
	if l, err := fetchCounters(ctx, c, &rdsdv1.GetCountersRequest{}); err != nil {
		return v, err
	} else if l != nil {
		v.Counters = l
	}
	return v, nil
}
