package cli

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) peersCmd() *cobra.Command {
	var remote, local string
	var paths bool
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "show the nodes this daemon has connections to",
		Long: `Show the peers: one line for each pair of local and remote address.

KIND is rdsd, kernel (Linux with source-port lanes) or kernel-legacy (one lane).
STATE is the best state of the peer's lanes: up, connecting, disconnecting,
error, down. QUEUED waits to be sent, UNACKED is sent and not acknowledged, HELD
was refused by the peer for lack of room and will be sent again. VOLUMES is how
many paths of volumes to or from the peer are connected, of how many. --paths shows
the lanes and the paths of volumes one by one.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := peerFilter(cmd.Context(), local, remote)
			if err != nil {
				return err
			}
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				list, err := c.Peers(ctx, filter)
				if err != nil {
					return err
				}
				if paths && a.form == formTSV {
					return printList(a, pathRows(list), nil, "")
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
	cmd.Flags().BoolVar(&paths, "paths", false, "one line for each lane and each path of volumes")
	cmd.RegisterFlagCompletionFunc("remote", a.complete(listPeerWords))
	cmd.AddCommand(a.dropCmd())
	return aList(a.reader(cmd))
}

func peerFilter(ctx context.Context, local, remote string) (f rdsd.PeerFilter, err error) {
	if local != "" {
		if f.Local, err = resolveHost(ctx, "--local", local); err != nil {
			return f, err
		}
	}
	if remote != "" {
		f.Remote, err = resolveHost(ctx, "--remote", remote)
	}
	return f, err
}

var peerColumns = []column[rdsd.Peer]{
	{"local", func(p rdsd.Peer) any { return addrText(p.Local) }},
	{"remote", func(p rdsd.Peer) any { return addrText(p.Remote) }},
	{"kind", func(p rdsd.Peer) any { return p.Kind }},
	{"auth", func(p rdsd.Peer) any { return yesNo(p.Authenticated) }},
	{"state", func(p rdsd.Peer) any { return p.State }},
	{"lanes", func(p rdsd.Peer) any { return p.Lanes }},
	{"rtt", func(p rdsd.Peer) any { return duration(p.RTT) }},
	{"queued", func(p rdsd.Peer) any { return p.Queued }},
	{"unacked", func(p rdsd.Peer) any { return p.Unacked }},
	{"held", func(p rdsd.Peer) any { return p.Held }},
	{"congested", func(p rdsd.Peer) any { return p.CongestedPorts }},
	{"volumes", func(p rdsd.Peer) any { return volumePathsUp(p.VolumePaths) }},
	{"last error", func(p rdsd.Peer) any { return peerError(p) }},
}

// volumePathsUp is how many paths of volumes are connected, of how many.
func volumePathsUp(l []rdsd.VolumePath) string {
	if len(l) == 0 {
		return "-"
	}
	up := 0
	for _, q := range l {
		if q.State == rdsd.PathConnected {
			up++
		}
	}
	return fmt.Sprintf("%d/%d", up, len(l))
}

// peerError is the last error of a peer, with its age and what is done about it.
func peerError(p rdsd.Peer) string {
	for _, q := range p.Paths {
		if q.LastError != "" {
			return pathError(q)
		}
	}
	return p.LastError
}

// pathError is the last error of a path, with its age and what is done about it.
func pathError(q rdsd.PeerPath) string {
	return trouble(q.LastError, q.ErrorAge, q.Attempts, q.RetryIn)
}

// trouble is an error, how long ago it was, how often it was tried since and when it is
// tried again; "" without one.
func trouble(text string, age time.Duration, attempts uint32, retry time.Duration) string {
	if text == "" {
		return ""
	}
	if age > 0 {
		text += ", " + duration(age).String() + " ago"
	}
	if attempts > 0 {
		text += ", " + plural(uint64(attempts), "attempt")
	}
	if retry > 0 {
		text += ", next in " + duration(retry).String()
	}
	return text
}

// pathRow is a path as a line for programs: a lane, or a path of volumes, of which the
// fields that only a lane has are 0. The names of the other fields are those of a lane.
type pathRow struct {
	Local  netip.Addr `json:"local"`
	Remote netip.Addr `json:"remote"`
	rdsd.PeerPath
	Kind    string `json:"kind"`    // "lane" or "volume"
	Session string `json:"session"` // of a path of volumes
	Role    string `json:"role"`    // of this node in that session
	// Of a path of volumes.
	Transport string `json:"transport"`
	Device    string `json:"device"`
	Port      uint32 `json:"port"`
}

func pathRows(peers []rdsd.Peer) []pathRow {
	var out []pathRow
	for _, l := range pathLines(peers) {
		r := pathRow{Local: l.local, Remote: l.remote, PeerPath: l.PeerPath, Kind: "lane"}
		if v := l.volume; v != nil {
			r.Kind, r.Session, r.Role = "volume", v.Session, string(v.Role)
			r.Transport, r.Device, r.Port = v.Transport, v.Device, v.Port
			r.LocalEndpoint, r.RemoteEndpoint = v.Src, v.Dst
			if v.Role == rdsd.RoleServer {
				r.LocalEndpoint, r.RemoteEndpoint = v.Dst, v.Src
			}
		}
		out = append(out, r)
	}
	return out
}

// pathLine is a path with the addresses of its peer: one of its lanes, or a path of
// volumes, of which the columns of a lane are empty.
type pathLine struct {
	local, remote netip.Addr
	rdsd.PeerPath
	volume *rdsd.VolumePath
}

// lane is text for a lane alone.
func (p pathLine) lane(v any) any {
	if p.volume != nil {
		return "-"
	}
	return v
}

func (p pathLine) name() any {
	if p.volume != nil {
		return "volume " + p.volume.Session
	}
	return p.Index
}

// link is its ends, ours first.
func (p pathLine) link() string {
	switch v := p.volume; {
	case v == nil:
		return p.LocalEndpoint + " > " + p.RemoteEndpoint
	case v.Role == rdsd.RoleServer:
		return v.Dst + " < " + v.Src + overSuffix(*v)
	default:
		return v.Src + " > " + v.Dst + overSuffix(*v)
	}
}

// overSuffix names the transport of a path that is not TCP, and its device.
func overSuffix(v rdsd.VolumePath) string {
	if v.Transport == "" || v.Transport == rdsd.TransportTCP {
		return ""
	}
	return " over " + overText(v)
}

func pathLines(peers []rdsd.Peer) []pathLine {
	var out []pathLine
	for _, p := range peers {
		for _, q := range p.Paths {
			out = append(out, pathLine{p.Local, p.Remote, q, nil})
		}
		for i := range p.VolumePaths {
			v := &p.VolumePaths[i]
			q := rdsd.PeerPath{State: rdsd.PeerState(v.State), Reconnects: v.Reconnects, LastError: v.LastError,
				SentBytes: v.WriteBytes, ReceivedBytes: v.ReadBytes}
			if v.Role == rdsd.RoleServer { // what is read there leaves here
				q.SentBytes, q.ReceivedBytes = v.ReadBytes, v.WriteBytes
			}
			if v.State == rdsd.PathConnected {
				q.UpFor = v.StateFor
			}
			out = append(out, pathLine{p.Local, p.Remote, q, v})
		}
	}
	return out
}

var pathColumns = []column[pathLine]{
	{"local", func(p pathLine) any { return addrText(p.local) }},
	{"remote", func(p pathLine) any { return addrText(p.remote) }},
	{"lane", func(p pathLine) any { return p.name() }},
	{"state", func(p pathLine) any { return p.State }},
	{"link", func(p pathLine) any { return p.link() }},
	{"next tx", func(p pathLine) any { return p.lane(p.NextTxSeq) }},
	{"next rx", func(p pathLine) any { return p.lane(p.NextRxSeq) }},
	{"up", func(p pathLine) any { return duration(p.UpFor) }},
	{"reconnects", func(p pathLine) any { return p.Reconnects }},
	{"sent", func(p pathLine) any { return bytesCount(p.SentBytes) }},
	{"received", func(p pathLine) any { return bytesCount(p.ReceivedBytes) }},
	{"credits", func(p pathLine) any { return p.lane(p.SendCredits) }},
	{"paused", func(p pathLine) any { return p.lane(yesNo(p.ReadPaused)) }},
	{"last error", func(p pathLine) any { return pathError(p.PeerPath) }},
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (a *app) dropCmd() *cobra.Command {
	var local string
	var lane uint32
	cmd := &cobra.Command{
		Use:   "drop REMOTE",
		Short: "drop the links to a peer; they come back by themselves",
		Long: `Drop the lanes to a peer, as after a network fault. What was not acknowledged
is sent again when they are back. Needs root, the daemon's user or a configured
administrator.`,
		ValidArgsFunction: a.completeFirst(listPeerWords),
		Args:              needArgs("REMOTE", "the address of a peer, as rdsd peers shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			remote, err := resolveHost(cmd.Context(), "REMOTE", args[0])
			if err != nil {
				return err
			}
			peer := rdsd.PeerFilter{Remote: remote}
			if local != "" {
				if peer.Local, err = resolveHost(cmd.Context(), "--local", local); err != nil {
					return err
				}
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
				dropped, err := 0, error(nil)
				if cmd.Flags().Changed("lane") {
					dropped, err = c.DropPath(ctx, peer, lane)
				} else {
					dropped, err = c.DropPaths(ctx, peer)
				}
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, map[string]int{"dropped": dropped})
				}
				fmt.Fprintf(a.out, "dropped %s to %s\n", plural(uint64(dropped), "lane"), remote)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&local, "local", "", "only from this local address")
	cmd.Flags().Uint32Var(&lane, "lane", 0, "only this lane (default all)")
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
