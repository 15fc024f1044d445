package cli

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) congestionCmd() *cobra.Command {
	var watch, history bool
	cmd := &cobra.Command{
		Use:   "congestion [ADDRESS:PORT]",
		Short: "show congested ports, who fills them and who waits",
		Long: `Show the ports that are congested, as seen from this node. For a port of this
node: the process that reads too slowly, how much it has queued, and the senders
that fill it, largest first. For a port of another node that runs rdsd the same, as
its daemon says, for ports that sockets here send to; and how many sockets here
wait for it, and how many of their sends were refused or had to wait. SINCE of others
is the least it can be: since their node last told a change. --watch reports every change as it happens.

--history shows the last hour instead, which the daemon keeps: for how long
each port was congested, when, and who was to read it and filled it, of all ports or
of one. TIMES counts from when the port had last been clear for an hour. In WHEN the
hour runs from left to right, up to now; the darker a mark, the longer of its time
the port was congested: . : + #`,
		Example: `  rdsd congestion
  rdsd congestion --watch
  rdsd congestion --history
  rdsd congestion --history 127.0.0.3:4000`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case watch && history:
				return usagef("--watch and --history do not go together")
			case history:
				return a.congestionHistory(cmd.Context(), args)
			case len(args) > 0:
				return usagef("a port is for --history")
			}
			if watch {
				if err := a.noWatch(); err != nil {
					return err
				}
				return a.adminStream(cmd.Context(), a.watchCongestion)
			}
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				list, leftOut, err := c.Congestion(ctx)
				if err != nil {
					return err
				}
				a.sayLeftOut(leftOut)
				if a.json || a.form == formTSV || len(list) == 0 {
					return printList(a, list, congestedColumns, "no port is congested")
				}
				writeTable(a.out, list, congestedColumns)
				a.printCulprits(list)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "report changes until interrupted; starts with what is congested now")
	cmd.Flags().BoolVar(&history, "history", false, "show the last hour")
	return aList(a.reader(cmd))
}

// sayLeftOut says that the daemon has not listed all congested ports.
func (a *app) sayLeftOut(n int) {
	if n > 0 {
		fmt.Fprintf(a.err, "rdsd: about %d more ports are congested and not shown\n", n)
	}
}

var congestedColumns = []column[rdsd.CongestedPort]{
	{"port", func(p rdsd.CongestedPort) any { return endpointText(p.Endpoint) }},
	{"where", func(p rdsd.CongestedPort) any { return where(p.Local) }},
	{"since", func(p rdsd.CongestedPort) any { return duration(p.CongestedFor) }},
	{"queued", func(p rdsd.CongestedPort) any { return ifKnown(p, bytesCount(p.QueuedBytes).String()) }},
	{"reader", func(p rdsd.CongestedPort) any {
		return ifKnown(p, fmt.Sprintf("pid %d (uid %d)", p.ReaderPID, p.ReaderUID))
	}},
	{"waiting", func(p rdsd.CongestedPort) any { return p.WaitingSenders }},
	{"blocked", func(p rdsd.CongestedPort) any { return p.Blocked }},
	{"filled by", func(p rdsd.CongestedPort) any { return firstCulprit(p) }},
}

func where(local bool) string {
	if local {
		return "here"
	}
	return "remote"
}

// ifKnown is s, unless the port is of a node that does not say who reads it.
func ifKnown(p rdsd.CongestedPort, s string) string {
	if !p.Local && p.ReaderPID == 0 {
		return "-"
	}
	return s
}

func firstCulprit(p rdsd.CongestedPort) string {
	if len(p.Culprits) == 0 {
		return "-"
	}
	return endpointText(p.Culprits[0].Source)
}

// printCulprits lists who fills the ports.
func (a *app) printCulprits(list []rdsd.CongestedPort) {
	type line struct {
		port netip.AddrPort
		rdsd.Culprit
	}
	var lines []line
	for _, p := range list {
		for _, c := range p.Culprits {
			lines = append(lines, line{p.Endpoint, c})
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	writeTable(a.out, lines, []column[line]{
		{"port", func(l line) any { return endpointText(l.port) }},
		{"sender", func(l line) any { return endpointText(l.Source) }},
		{"datagrams", func(l line) any { return l.QueuedDatagrams }},
		{"bytes", func(l line) any { return bytesCount(l.QueuedBytes) }},
	})
}

func (a *app) watchCongestion(ctx context.Context, c *rdsd.Admin) error {
	notices := opened(ctx, a, func(ctx context.Context) iter.Seq2[rdsd.CongestionNotice, error] {
		return c.WatchCongestion(ctx, rdsd.WatchCurrent())
	})
	for n, err := range notices {
		if err != nil {
			return interrupted(ctx, err)
		}
		if a.json {
			err = writeNDJSON(a.out, n)
		} else {
			what := "clear"
			if n.Congested {
				what = "CONGESTED"
			}
			_, err = fmt.Fprintf(a.out, "%s  %-24s %-7s %s\n", n.Time.Format("15:04:05.000"), n.Endpoint, where(n.Local), what)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
