package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) cancelCmd() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "cancel --from ADDR:PORT --to ADDR:PORT",
		Short: "cancel what a socket has queued to one destination",
		Long: `Drop the datagrams the socket bound to --from has queued to --to (port 0: to
every port of that address). Those that have begun to leave cannot be called
back; the sender learns their true outcome. What stands in the socket's rings and
was not taken yet is cancelled as well, and not counted. Needs root, the daemon's user or a
configured administrator; applications use cancel_sent_to on their own socket.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from == "" || to == "" {
				return usagef("cancel needs both --from (a bound socket, see rdsd sockets) and --to (the destination)")
			}
			src, err := parseEndpoint("--from", from)
			if err != nil {
				return err
			}
			dst, err := parseEndpoint("--to", to)
			if err != nil {
				return err
			}
			if src.Addr().Is4() != dst.Addr().Is4() {
				return usagef("--from %s and --to %s: IPv4 and IPv6 do not mix", src, dst)
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
				r, err := c.CancelSent(ctx, src, dst)
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, r)
				}
				fmt.Fprintf(a.out, "%s cancelled, %d already on their way\n", plural(r.Cancelled, "datagram"), r.InFlight)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the sending socket, ADDR:PORT")
	cmd.Flags().StringVar(&to, "to", "", "the destination, ADDR:PORT; port 0 means every port")
	cmd.RegisterFlagCompletionFunc("from", a.complete(listSocketWords))
	return cmd
}
