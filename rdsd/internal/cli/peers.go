package cli

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func (a *app) peersCmd() *cobra.Command {
	var remote, local string
	var paths bool
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "show the nodes this daemon has connections to",
		Long: `Show the peers: one line for each pair of local and remote address.

KIND is rdsd, kernel (Linux with source-port lanes) or kernel-legacy (one lane).
STATE is the best state of the peer's paths: up, connecting, disconnecting,
error, down. QUEUED waits to be sent, UNACKED is sent and not acknowledged, HELD
was refused by the peer for lack of room and will be sent again. --paths shows
the lanes one by one.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, err := peerFilter(cmd.Context(), local, remote)
			if err != nil {
				return err
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				list, err := fetchPeers(ctx, c, req)
				if err != nil {
					return err
				}
				if paths && !a.json {
					return printList(a, pathLines(list), pathColumns, "no peers")
				}
				return printList(a, list, peerColumns, "no peers: nothing was sent to or received from another node yet")
			})
		},
	}
	cmd.Flags().StringVar(&remote, "remote", "", "only peers at this address")
	cmd.Flags().StringVar(&local, "local", "", "only peers seen from this local address")
	cmd.Flags().BoolVar(&paths, "paths", false, "one line for each path (lane)")
	cmd.RegisterFlagCompletionFunc("remote", a.complete(listPeerWords))
	cmd.AddCommand(a.dropCmd())
	return cmd
}

func peerFilter(ctx context.Context, local, remote string) (*rdsdv1.ListPeersRequest, error) {
	b := rdsdv1.ListPeersRequest_builder{}
	for _, f := range []struct {
		flag, value string
		into        *[]byte
	}{{"--local", local, &b.Local}, {"--remote", remote, &b.Remote}} {
		if f.value == "" {
			continue
		}
		addr, err := resolveHost(ctx, f.flag, f.value)
		if err != nil {
			return nil, err
		}
		*f.into = addr.AsSlice()
	}
	return b.Build(), nil
}

func fetchPeers(ctx context.Context, c rdsdv1.AdminClient, req *rdsdv1.ListPeersRequest) ([]peerView, error) {
	resp, err := c.ListPeers(ctx, req)
	if err != nil {
		return nil, err
	}
	var list []peerView
	for _, p := range resp.GetPeer() {
		list = append(list, viewPeer(p))
	}
	return list, nil
}

var peerColumns = []column[peerView]{
	{"local", func(p peerView) any { return addrText(p.Local) }},
	{"remote", func(p peerView) any { return addrText(p.Remote) }},
	{"kind", func(p peerView) any { return p.Kind }},
	{"auth", func(p peerView) any { return yesNo(p.Authenticated) }},
	{"state", func(p peerView) any { return p.State }},
	{"lanes", func(p peerView) any { return p.Lanes }},
	{"rtt", func(p peerView) any { return p.RTT }},
	{"queued", func(p peerView) any { return p.Queued }},
	{"unacked", func(p peerView) any { return p.Unacked }},
	{"held", func(p peerView) any { return p.Held }},
	{"congested", func(p peerView) any { return p.Congested }},
	{"last error", func(p peerView) any { return p.LastError }},
}

// pathLine is a path with the addresses of its peer.
type pathLine struct {
	local, remote netip.Addr
	pathView
}

func pathLines(peers []peerView) []pathLine {
	var out []pathLine
	for _, p := range peers {
		for _, q := range p.Paths {
			out = append(out, pathLine{p.Local, p.Remote, q})
		}
	}
	return out
}

var pathColumns = []column[pathLine]{
	{"local", func(p pathLine) any { return addrText(p.local) }},
	{"remote", func(p pathLine) any { return addrText(p.remote) }},
	{"lane", func(p pathLine) any { return p.Index }},
	{"state", func(p pathLine) any { return p.State }},
	{"link", func(p pathLine) any { return p.Local + " > " + p.Remote }},
	{"next tx", func(p pathLine) any { return p.NextTx }},
	{"next rx", func(p pathLine) any { return p.NextRx }},
	{"up", func(p pathLine) any { return p.Up }},
	{"reconnects", func(p pathLine) any { return p.Reconnects }},
	{"sent", func(p pathLine) any { return p.Sent }},
	{"received", func(p pathLine) any { return p.Received }},
	{"credits", func(p pathLine) any { return p.Credits }},
	{"paused", func(p pathLine) any { return yesNo(p.Paused) }},
	{"last error", func(p pathLine) any { return p.LastError }},
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) dropCmd() *cobra.Command {
	var local string
	lane := -1
	cmd := &cobra.Command{
		Use:   "drop REMOTE",
		Short: "drop the links to a peer; they come back by themselves",
		Long: `Drop the paths to a peer, as after a network fault. What was not acknowledged
is sent again when they are back. Needs root, the daemon's user or a configured
administrator.`,
		ValidArgsFunction: a.completeFirst(listPeerWords),
		Args:              needArgs("REMOTE", "the address of a peer, as rdsd peers shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			remote, err := resolveHost(cmd.Context(), "REMOTE", args[0])
			if err != nil {
				return err
			}
			b := rdsdv1.DropPathRequest_builder{Remote: remote.AsSlice(), AllLanes: lane < 0}
			if lane >= 0 {
				b.Lane = uint32(lane)
			}
			if local != "" {
				l, err := resolveHost(cmd.Context(), "--local", local)
				if err != nil {
					return err
				}
				b.Local = l.AsSlice()
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				resp, err := c.DropPath(ctx, b.Build())
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, map[string]uint32{"dropped": resp.GetDropped()})
				}
				fmt.Fprintf(a.out, "dropped %s to %s\n", plural(uint64(resp.GetDropped()), "path"), remote)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&local, "local", "", "only from this local address")
	cmd.Flags().IntVar(&lane, "lane", -1, "only this lane (default all)")
	return cmd
}

// needArgs requires exactly one argument and says what it is.
func needArgs(name, meaning string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("%s is missing: %s", name, meaning)
		case len(args) > 1:
			return usagef("one %s is meant (%s), but there are %d arguments: %q", name, meaning, len(args), args)
		}
		return nil
	}
}

func plural(n uint64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
