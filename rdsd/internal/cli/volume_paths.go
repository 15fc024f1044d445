package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) volumeSessionsCmd() *cobra.Command {
	var session string
	var reset bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "show the sessions with other nodes, in both roles",
		Long: `Show the sessions volumes use: as a client (this node maps) and as a server (this
node exports). WAITING are requests that wait for a path or for room at the
server; DEPTH is how many can be in flight. UNFENCED is how often requests of a lost
path to a kernel's server went to another one, which that server cannot be asked to
make safe (docs/volumes.md). 'sessions policy' changes how requests choose among
paths, 'sessions set' the rest.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reset && a.from != "" {
				return errResetArchive
			}
			err := a.read(cmd.Context(), func(ctx context.Context, c source) error {
				all, err := c.VolumeSessions(ctx)
				if err != nil {
					return err
				}
				if session != "" {
					all = slices.DeleteFunc(all, func(s rdsd.VolumeSession) bool { return s.Name != session && s.ID != session })
					if len(all) == 0 {
						return noSession(session)
					}
				}
				return printList(a, all, sessionColumns, "no sessions: nothing is mapped, and no other node maps a volume of this one")
			})
			if err != nil || !reset {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				return v.ResetStats(ctx, session, rdsd.PathSpec{})
			})
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "only this session, by name or id")
	cmd.Flags().BoolVar(&reset, "reset-stats", false, "then set the statistics of their paths to 0")
	cmd.RegisterFlagCompletionFunc("session", a.completeVolume(sessionWords))
	cmd.AddCommand(a.volumePolicyCmd(), a.volumeSetSessionCmd())
	return aList(a.reader(cmd))
}

var errResetArchive = usagef("--reset-stats is for a daemon, and --from shows what an archive has: leave one of them out")

func noSession(name string) error {
	return rdserr.With(rdserr.ErrNotFound, "there is no session %q; rdsd volume sessions shows those there are", name)
}

var sessionColumns = []column[rdsd.VolumeSession]{
	{"id", func(s rdsd.VolumeSession) any { return s.ID }},
	{"session", func(s rdsd.VolumeSession) any { return s.Name }},
	{"role", func(s rdsd.VolumeSession) any { return s.Role }},
	{"node", func(s rdsd.VolumeSession) any { return s.Peer }},
	{"kind", func(s rdsd.VolumeSession) any { return peerKind(s.Kernel) }},
	{"state", func(s rdsd.VolumeSession) any { return upDown(s.Up) }},
	{"for", func(s rdsd.VolumeSession) any { return duration(s.StateFor) }},
	{"paths", func(s rdsd.VolumeSession) any { return fmt.Sprintf("%d/%d", s.PathsUp, s.Paths) }},
	{"policy", func(s rdsd.VolumeSession) any { return orDash(s.Policy) }},
	{"unfenced", func(s rdsd.VolumeSession) any { return unfencedText(s) }},
	{"depth", func(s rdsd.VolumeSession) any { return s.QueueDepth }},
	{"in flight", func(s rdsd.VolumeSession) any { return s.InFlight }},
	{"waiting", func(s rdsd.VolumeSession) any { return s.Waiting }},
	{"memory", func(s rdsd.VolumeSession) any { return bytesCount(s.Memory) }},
	{"volumes", func(s rdsd.VolumeSession) any { return strings.Join(s.Volumes, " ") }},
}

// peerKind names the other end of a session.
func peerKind(kernel bool) string {
	if kernel {
		return "kernel"
	}
	return "rdsd"
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func (a *app) volumePolicyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "policy SESSION POLICY",
		Short: "change how requests of a session choose among its paths",
		Long: fold("Set the multipath policy of a session of this node's own: " + policyHelp() + `.
			Requests under way stay where they are.`),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("a SESSION and a POLICY are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				var words []string
				for _, w := range policyWords {
					words = append(words, string(w))
				}
				return words, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeVolumeFirst(sessionWords)(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			policy, err := policyOf("POLICY", args[1])
			if err == nil && policy == "" {
				err = usagef("POLICY is empty: want %s", policyList())
			}
			if err != nil {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				if err := v.SetPolicy(ctx, args[0], policy); err != nil {
					return err
				}
				return a.did(map[string]string{"session": args[0], "policy": string(policy)}, "%s uses %s", args[0], policy)
			})
		},
	}
}

func (a *app) volumePathsCmd() *cobra.Command {
	var session string
	var reset bool
	cmd := &cobra.Command{
		Use:   "paths",
		Short: "show the paths of sessions, with their statistics",
		Long: `Show the paths: their state, the latency of the last heartbeat, and what they have
carried since they were made or their statistics were reset. FAILOVERS are
requests a path took over from others.

'paths add', 'remove', 'disconnect' and 'reconnect' change the paths of a session
while it is in use. A path is named SRC,DST; what is not needed to tell it from
the others, the ports, or SRC, may be left out.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reset && a.from != "" {
				return errResetArchive
			}
			err := a.read(cmd.Context(), func(ctx context.Context, c source) error {
				all, err := c.VolumePaths(ctx)
				if err != nil {
					return err
				}
				if session != "" {
					all = slices.DeleteFunc(all, func(p rdsd.VolumePath) bool { return p.Session != session && p.SessionID != session })
					if len(all) == 0 {
						return noSession(session)
					}
				}
				return printList(a, all, volumePathColumns, "no paths: nothing is mapped, and no other node maps a volume of this one")
			})
			if err != nil || !reset {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				return v.ResetStats(ctx, session, rdsd.PathSpec{})
			})
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "only of this session, by name or id")
	cmd.Flags().BoolVar(&reset, "reset-stats", false, "then set their statistics to 0")
	cmd.RegisterFlagCompletionFunc("session", a.completeVolume(sessionWords))
	for _, c := range pathActions {
		cmd.AddCommand(a.pathActionCmd(c))
	}
	return aList(a.reader(cmd))
}

var volumePathColumns = []column[rdsd.VolumePath]{
	{"session", func(p rdsd.VolumePath) any { return p.Session }},
	{"role", func(p rdsd.VolumePath) any { return p.Role }},
	{"path", func(p rdsd.VolumePath) any { return p.Src + " > " + p.Dst }},
	{"over", func(p rdsd.VolumePath) any { return overText(p) }},
	{"state", func(p rdsd.VolumePath) any { return p.State }},
	{"for", func(p rdsd.VolumePath) any { return duration(p.StateFor) }},
	{"latency", func(p rdsd.VolumePath) any { return duration(p.CurLatency) }},
	{"in flight", func(p rdsd.VolumePath) any { return p.InFlight }},
	{"reads", func(p rdsd.VolumePath) any { return p.Reads }},
	{"read", func(p rdsd.VolumePath) any { return bytesCount(p.ReadBytes) }},
	{"writes", func(p rdsd.VolumePath) any { return p.Writes }},
	{"written", func(p rdsd.VolumePath) any { return bytesCount(p.WriteBytes) }},
	{"failovers", func(p rdsd.VolumePath) any { return p.Failovers }},
	{"reconnects", func(p rdsd.VolumePath) any { return fmt.Sprintf("%d, %d failed", p.Reconnects, p.ReconnectsFailed) }},
	{"last error", func(p rdsd.VolumePath) any { return trouble(p.LastError, p.ErrorAge, p.Attempts, p.RetryIn) }},
}

// overText is the transport of a path, and the device and its port if it has one.
func overText(p rdsd.VolumePath) string {
	if p.Device == "" {
		return p.Transport
	}
	return fmt.Sprintf("%s %s/%d", p.Transport, p.Device, p.Port)
}

// pathAction is what can be done to a path.
type pathAction struct {
	name, short, long, done string
	do                      func(v *rdsd.Volumes, ctx context.Context, session string, p rdsd.PathSpec, opts ...rdsd.PathOption) error
	waited                  string // what it is after --wait
	knows                   bool   // the path is there already, and can be completed
	takes                   bool   // the path carries nothing afterwards
}

var pathActions = []pathAction{
	{
		name: "add", short: "give a session a further path", done: "added",
		long: `Add a path to a session of this node's own. It carries requests as soon as it is
connected.`,
		waited: "connected",
		do: func(v *rdsd.Volumes, ctx context.Context, session string, p rdsd.PathSpec, opts ...rdsd.PathOption) error {
			_, err := v.AddPath(ctx, session, p, opts...)
			return err
		},
	},
	{
		name: "remove", short: "take a path from a session", done: "removed", knows: true,
		long: `Take a path from a session of this node's own for good. Its requests move to the
others.`,
		do: (*rdsd.Volumes).RemovePath, waited: "removed", takes: true,
	},
	{
		name: "disconnect", short: "close a path, until it is reconnected", done: "disconnected", knows: true,
		long: `Close a path. Its requests move to others. One of this node's own stays closed
until 'paths reconnect'; one another node made to this one comes back if that
node wants it to.`,
		do: (*rdsd.Volumes).DisconnectPath, waited: "disconnected", takes: true,
	},
	{
		name: "reconnect", short: "connect a path anew, now", done: "reconnecting", knows: true,
		long: `Connect a path of this node's own anew, now, whatever its state is.`,
		do:   (*rdsd.Volumes).ReconnectPath, waited: "connected",
	},
}

// warnOfNoPath says that a session was left without a path that carries requests. That is
// no error: the path that comes next may be under way.
func (a *app) warnOfNoPath(ctx context.Context, v *rdsd.Volumes, session string) {
	paths, err := v.Paths(ctx, session)
	if err != nil || slices.ContainsFunc(paths, func(p rdsd.VolumePath) bool { return p.State == rdsd.PathConnected }) {
		return
	}
	say(a.err, "%s has no connected path now, and what uses its volumes waits or fails: rdsd volume paths\n", session)
}

func (a *app) pathActionCmd(c pathAction) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   c.name + " SESSION SRC,DST",
		Short: c.short,
		Long: c.long + `

With --wait the command ends when the path is ` + c.waited + `, after --timeout with exit code
4, or when it cannot be; without, when that is begun.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("a SESSION and a path SRC,DST are meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 && c.knows {
				return a.completeVolume(pathWords(args[0]))(cmd, args, typed)
			}
			return a.completeVolumeFirst(sessionWords)(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := parsePath("SRC,DST", args[1])
			if err != nil {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				var opts []rdsd.PathOption
				done := c.done
				if wait {
					opts, done = append(opts, rdsd.UntilDone()), c.waited
				}
				if err := c.do(v, ctx, args[0], p, opts...); err != nil {
					return err
				}
				err := a.did(struct {
					Session string        `json:"session"`
					Path    rdsd.PathSpec `json:"path"`
					Done    string        `json:"done"`
				}{args[0], p, done}, "%s: %s %s", args[0], pathText(p), done)
				if c.takes {
					a.warnOfNoPath(ctx, v, args[0])
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "until it is "+c.waited)
	return cmd
}
