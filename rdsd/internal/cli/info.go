package cli

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// infoView is everything a daemon tells, as `rdsd info --json` prints it.
type infoView struct {
	Status     *rdsd.Status          `json:"status"`
	Peers      []rdsd.Peer           `json:"peers"`
	Sockets    []rdsd.SocketInfo     `json:"sockets"`
	Queue      []rdsd.QueuedDatagram `json:"queue"`
	Truncated  bool                  `json:"truncated"` // more are queued
	Congestion []rdsd.CongestedPort  `json:"congestion"`
	LeftOut    int                   `json:"congestion_left_out,omitempty"` // about how many more are congested
	Counters   []rdsd.Counter        `json:"counters"`
}

func (a *app) infoCmd() *cobra.Command {
	return a.reader(&cobra.Command{
		Use:   "info",
		Short: "show everything: status, peers, sockets, queues, congestion, counters",
		Long: `Show everything the daemon knows, in one page; --json is the form to attach to
a report. Counters that are zero are left out of the page. For the layout of the
kernel's tool see 'rdsd rds-info'.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				v, err := fetchInfo(ctx, c)
				if err != nil {
					return err
				}
				if v.Truncated {
					fmt.Fprintf(a.err, "rdsd: only the first %d queued datagrams are shown; see rdsd queue --limit\n", len(v.Queue))
				}
				a.sayLeftOut(v.LeftOut)
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
	})
}

func section[T any](a *app, title string, items []T, cols []column[T]) {
	if len(items) == 0 {
		fmt.Fprintf(a.out, "\n%s: none\n", title)
		return
	}
	fmt.Fprintf(a.out, "\n%s:\n", title)
	writeTable(a.out, items, cols)
}

func fetchInfo(ctx context.Context, c source) (v infoView, err error) {
	if v.Status, err = c.Status(ctx); err != nil {
		return v, err
	}
	if v.Peers, err = c.Peers(ctx, rdsd.PeerFilter{}); err != nil {
		return v, err
	}
	if v.Sockets, err = c.Sockets(ctx); err != nil {
		return v, err
	}
	if v.Queue, v.Truncated, err = c.Queue(ctx, rdsd.QueueAll, 0); err != nil {
		return v, err
	}
	if v.Congestion, v.LeftOut, err = c.Congestion(ctx); err != nil {
		return v, err
	}
	v.Counters, err = c.Counters(ctx, netip.Addr{})
	return v, err
}
