package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func (a *app) congestionCmd() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "congestion",
		Short: "show congested ports, who fills them and who waits",
		Long: `Show the ports that are congested, as seen from this node. For a port of this
node: the process that reads too slowly, how much it has queued, and the senders
that fill it, largest first. For a port of another node that runs rdsd the same, as
its daemon says, for ports that sockets here send to; and how many sockets here
wait for it, and how many of their sends were refused or had to wait. --watch reports every change as it happens.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.adminStream(cmd.Context(), a.watchCongestion)
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				list, err := fetchCongestion(ctx, c)
				if err != nil {
					return err
				}
				if a.json || len(list) == 0 {
					return printList(a, list, congestedColumns, "no port is congested")
				}
				writeTable(a.out, list, congestedColumns)
				a.printCulprits(list)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "report changes until interrupted; starts with what is congested now")
	return cmd
}

func fetchCongestion(ctx context.Context, c rdsdv1.AdminClient) ([]congestedView, error) {
	resp, err := c.ListCongestion(ctx, &rdsdv1.ListCongestionRequest{})
	if err != nil {
		return nil, err
	}
	var list []congestedView
	for _, p := range resp.GetPort() {
		list = append(list, viewCongested(p))
	}
	return list, nil
}

var congestedColumns = []column[congestedView]{
	{"port", func(p congestedView) any { return endpointText(p.Endpoint) }},
	{"where", func(p congestedView) any { return where(p.Local) }},
	{"since", func(p congestedView) any { return p.Since }},
	{"queued", func(p congestedView) any { return ifKnown(p, p.Queued.String()) }},
	{"reader", func(p congestedView) any {
		return ifKnown(p, fmt.Sprintf("pid %d (uid %d)", p.ReaderPID, p.ReaderUID))
	}},
	{"waiting", func(p congestedView) any { return p.Waiting }},
	{"blocked", func(p congestedView) any { return p.Blocked }},
	{"filled by", func(p congestedView) any { return firstCulprit(p) }},
}

func where(local bool) string {
	if local {
		return "here"
	}
	return "remote"
}

// ifKnown is s, unless the port is of a node that does not say who reads it.
func ifKnown(p congestedView, s string) string {
	if !p.Local && p.ReaderPID == 0 {
		return "-"
	}
	return s
}

func firstCulprit(p congestedView) string {
	if len(p.Culprits) == 0 {
		return "-"
	}
	return endpointText(p.Culprits[0].Source)
}

// printCulprits lists who fills the ports.
func (a *app) printCulprits(list []congestedView) {
	type line struct {
		port netip.AddrPort
		culpritView
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
		{"datagrams", func(l line) any { return l.Datagrams }},
		{"bytes", func(l line) any { return l.Bytes }},
	})
}

// congestionChange is one line of --watch.
type congestionChange struct {
	Time      time.Time      `json:"time"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Local     bool           `json:"local"`
	Congested bool           `json:"congested"`
}

func (a *app) watchCongestion(ctx context.Context, c rdsdv1.AdminClient) error {
	stream, err := c.WatchCongestion(ctx, rdsdv1.WatchCongestionRequest_builder{IncludeCurrent: true}.Build())
	if err != nil {
		return err
	}
	for {
		n, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return withCode(exitUnreachable, errors.New("the daemon ended the watch; it is shutting down"))
		}
		if err != nil {
			return interrupted(ctx, err)
		}
		v := congestionChange{time.Unix(0, n.GetUnixNs()), endpointOf(n.GetEndpoint()), n.GetLocal(), n.GetCongested()}
		if a.json {
			err = writeNDJSON(a.out, v)
		} else {
			what := "clear"
			if v.Congested {
				what = "CONGESTED"
			}
			_, err = fmt.Fprintf(a.out, "%s  %-24s %-7s %s\n", v.Time.Format("15:04:05.000"), v.Endpoint, where(v.Local), what)
		}
		if err != nil {
			return err
		}
	}
}
