package cli

import (
	"context"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) socketsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sockets",
		Short: "show the sockets applications have bound",
		Long: `Show the sockets: who owns them, how full their buffers are, and what became
of the datagrams they sent (accepted = delivered + cancelled + failed + unknown +
in flight).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				list, err := c.Sockets(ctx)
				if err != nil {
					return err
				}
				return printList(a, list, socketColumns, "no sockets: no application is connected")
			})
		},
	}
	cmd.AddCommand(a.closeSocketCmd())
	return aList(a.reader(cmd))
}

var socketColumns = []column[rdsd.SocketInfo]{
	{"local", func(s rdsd.SocketInfo) any { return endpointText(s.Local) }},
	{"uid", func(s rdsd.SocketInfo) any { return s.UID }},
	{"pid", func(s rdsd.SocketInfo) any { return s.PID }},
	{"program", func(s rdsd.SocketInfo) any { return orDash(s.Program) }},
	{"label", func(s rdsd.SocketInfo) any { return s.Label }},
	{"sndbuf", func(s rdsd.SocketInfo) any { return used(s.SendQueuedBytes, s.SendBufferBytes) }},
	{"rcvbuf", func(s rdsd.SocketInfo) any { return used(s.RecvQueuedBytes, s.RecvBufferBytes) }},
	{"unread", func(s rdsd.SocketInfo) any { return s.RecvQueued }},
	{"congested", func(s rdsd.SocketInfo) any { return yesNo(s.Congested) }},
	{"accepted", func(s rdsd.SocketInfo) any { return s.Accepted }},
	{"delivered", func(s rdsd.SocketInfo) any { return s.Delivered }},
	{"cancelled", func(s rdsd.SocketInfo) any { return s.Cancelled }},
	{"failed", func(s rdsd.SocketInfo) any { return s.Failed }},
	{"unknown", func(s rdsd.SocketInfo) any { return s.Unknown }},
	{"in flight", func(s rdsd.SocketInfo) any { return s.InFlight }},
	{"received", func(s rdsd.SocketInfo) any { return s.Received }},
	{"waiting", func(s rdsd.SocketInfo) any { return s.WaitingSends }},
}

// used says how full a buffer is.
func used(queued, size uint64) string {
	return bytesCount(queued).String() + "/" + bytesCount(size).String()
}

func (a *app) closeSocketCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "close ADDR:PORT",
		Short: "close an application's socket",
		Long: `Close the socket bound to ADDR:PORT: its application still receives what
has arrived, then gets ECONNRESET; what it had queued is cancelled. Needs root,
the daemon's user or a configured administrator.`,
		ValidArgsFunction: a.completeFirst(listSocketWords),
		Args:              needArgs("ADDR:PORT", "a bound address, as rdsd sockets shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ep, err := parseEndpoint("ADDR:PORT", args[0])
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
				if err := c.CloseSocket(ctx, ep); err != nil {
					return err
				}
				return a.did(map[string]string{"closed": ep.String()}, "closed %s", ep)
			})
		},
	}
}
