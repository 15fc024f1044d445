package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func (a *app) socketsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sockets",
		Short: "show the sockets applications have bound",
		Long: `Show the sockets: who owns them, how full their buffers are, and what became
of the datagrams they sent (accepted = delivered + cancelled + failed + unknown +
in flight).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				list, err := fetchSockets(ctx, c)
				if err != nil {
					return err
				}
				return printList(a, list, socketColumns, "no sockets: no application is connected")
			})
		},
	}
	cmd.AddCommand(a.closeSocketCmd())
	return cmd
}

func fetchSockets(ctx context.Context, c rdsdv1.AdminClient) ([]socketView, error) {
	resp, err := c.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
	if err != nil {
		return nil, err
	}
	var list []socketView
	for _, s := range resp.GetSocket() {
		list = append(list, viewSocket(s))
	}
	return list, nil
}

var socketColumns = []column[socketView]{
	{"local", func(s socketView) any { return endpointText(s.Local) }},
	{"uid", func(s socketView) any { return s.UID }},
	{"pid", func(s socketView) any { return s.PID }},
	{"label", func(s socketView) any { return s.Label }},
	{"sndbuf", func(s socketView) any { return s.SndQueued.String() + "/" + s.SndBuf.String() }},
	{"rcvbuf", func(s socketView) any { return s.RcvQueued.String() + "/" + s.RcvBuf.String() }},
	{"unread", func(s socketView) any { return s.Unread }},
	{"congested", func(s socketView) any { return yesNo(s.Congested) }},
	{"accepted", func(s socketView) any { return s.Accepted }},
	{"delivered", func(s socketView) any { return s.Delivered }},
	{"cancelled", func(s socketView) any { return s.Cancelled }},
	{"failed", func(s socketView) any { return s.Failed }},
	{"unknown", func(s socketView) any { return s.Unknown }},
	{"in flight", func(s socketView) any { return s.InFlight }},
	{"received", func(s socketView) any { return s.Received }},
	{"waiting", func(s socketView) any { return s.Waiting }},
}

func (a *app) closeSocketCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "close ADDR:PORT",
		Short: "close an application's socket",
		Long: `Close the socket bound to ADDR:PORT: its application gets an error, what it had
queued is cancelled. Needs root, the daemon's user or a configured
administrator.`,
		ValidArgsFunction: a.completeFirst(listSocketWords),
		Args:              needArgs("ADDR:PORT", "a bound address, as rdsd sockets shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ep, err := parseEndpoint("ADDR:PORT", args[0])
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				_, err := c.CloseSocket(ctx, rdsdv1.CloseSocketRequest_builder{Local: endpointTo(ep)}.Build())
				if err != nil {
					return err
				}
				if !a.json {
					fmt.Fprintf(a.out, "closed %s\n", ep)
				}
				return nil
			})
		},
	}
}
