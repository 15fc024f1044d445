package cli

import (
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rdsd/rdsd/rdsd/internal/demo"
)

func (a *app) demoCmd() *cobra.Command {
	var length time.Duration
	var plain bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "show two nodes at work on this machine",
		Long: `Start two nodes on loopback addresses in this process, and applications on both
that exchange datagrams through the SDK and the real wire. A volume of one is
mapped on the other over two paths, and written and verified all the time. A port
is made to congest and to clear, a link is cut and comes back, and with it one of
the volume's paths; all of it is told as it happens. It goes on until Ctrl-C or
for --for, and ends with a summary in which every datagram has its outcome and
every block is what was written last. It needs no configuration and leaves
nothing behind.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := demo.Config{Length: length, Out: a.out, JSON: a.json}
			if f, ok := fileOf(a.out); ok && !plain && term.IsTerminal(int(f.Fd())) {
				c.TTY = true
				c.Width, _, _ = term.GetSize(int(f.Fd()))
			}
			// By itself the signal ends a process; without a reader it ends in order, and its directory goes.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGPIPE)
			defer stop()
			sum, err := demo.Run(ctx, c)
			if err != nil {
				return err
			}
			if !sum.AddsUp() {
				return withCode(exitIncomplete, fmt.Errorf("the account does not add up: %+v", sum))
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&length, "for", 0, "how long; 0 means until Ctrl-C")
	cmd.Flags().BoolVar(&plain, "plain", false, "plain lines even on a terminal")
	return cmd
}
