package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// lostOptions say what becomes of a path that is lost, and of what was in flight on it.
type lostOptions struct {
	unfenced   string
	after      time.Duration
	reconnects string
}

func (o *lostOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.unfenced, "unfenced", "", "requests in flight on a lost path to a kernel's server: after --unfenced-after to another path, now, or wait for the same path (default as configured, else after)")
	f.DurationVar(&o.after, "unfenced-after", 0, "with --unfenced after (default as configured, else 40s)")
	f.StringVar(&o.reconnects, "max-reconnect-attempts", "", "attempts in a row after which a lost path is left disconnected, -1 for no limit (default as configured, else -1)")
	flagWords(cmd, "unfenced", unfencedWords)
}

// values reads them; zero is what was not given.
func (o *lostOptions) values() (u rdsd.VolumeUnfenced, after time.Duration, reconnects int, err error) {
	if u, err = oneOf("--unfenced", o.unfenced, unfencedWords); err != nil {
		return u, 0, 0, err
	}
	switch {
	case o.after < 0:
		return u, 0, 0, usagef("--unfenced-after %v: want a time such as 40s", o.after)
	case o.after > 0 && u != "" && u != rdsd.UnfencedAfter:
		return u, 0, 0, usagef("--unfenced-after goes with --unfenced after, not with %s", u)
	}
	if o.reconnects != "" {
		n, err := strconv.Atoi(o.reconnects)
		if err != nil || n == 0 || n < -1 || n > math.MaxInt32 {
			return u, 0, 0, usagef("--max-reconnect-attempts %q: want -1 (no limit), or 1 to 9999", o.reconnects)
		}
		reconnects = n
	}
	return u, o.after, reconnects, nil
}

// unfencedText is how often there was a failover without a fence, where there can be one.
func unfencedText(s rdsd.VolumeSession) any {
	if s.Role != rdsd.RoleClient || !s.Kernel {
		return "-"
	}
	return s.UnfencedFailovers
}

func (a *app) volumeSetSessionCmd() *cobra.Command {
	var o lostOptions
	var policy string
	cmd := &cobra.Command{
		Use:   "set SESSION",
		Short: "change what a session does about its paths",
		Long: `Change settings of a session of this node's own while it is in use. Its mappings
have them from then on, also when the daemon starts again and they are persistent.

--unfenced is about servers that are kernels: what was in flight on a lost path may
still be carried out there. "after" sends it on another path when the kernel has
ended the lost one, which takes it 35 s at most; a write that its store holds for
longer can go over a newer one. "now" is what kernels do: it takes the risk at
once. "wait" takes none, and waits for the path for as long as it is away.`,
		Example: `  rdsd volume sessions set app-store --unfenced wait
  rdsd volume sessions set app-store --unfenced after --unfenced-after 2m
  rdsd volume sessions set app-store --max-reconnect-attempts 10`,
		Args:              needArgs("SESSION", "the name or id of a session of this node's own"),
		ValidArgsFunction: a.completeVolumeFirst(sessionWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			var c rdsd.SessionChange
			var err error
			if c.Unfenced, c.UnfencedAfter, c.MaxReconnectAttempts, err = o.values(); err != nil {
				return err
			}
			if c.Policy, err = policyOf("--policy", policy); err != nil {
				return err
			}
			if c == (rdsd.SessionChange{}) {
				return usagef("there is nothing to change: want --policy, --unfenced, --unfenced-after or --max-reconnect-attempts")
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				s, err := v.SetSession(ctx, args[0], c)
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, s)
				}
				say(a.out, "%s: %s; requests of a kernel's lost path %s; a lost path is tried again %s\n", s.Name, s.Policy, unfencedWay(s.Unfenced, s.UnfencedAfter), attemptsText(s.MaxReconnectAttempts))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&policy, "policy", "", "how requests choose among paths: "+policyList())
	o.flags(cmd)
	flagWords(cmd, "policy", policyWords)
	return cmd
}

// unfencedWay is the end of "requests of a kernel's lost path ...".
func unfencedWay(u rdsd.VolumeUnfenced, after time.Duration) string {
	switch u {
	case rdsd.UnfencedAfter:
		return "go to another one after " + duration(after).String()
	case rdsd.UnfencedNow:
		return "go to another one at once"
	}
	return "wait for it"
}

// attemptsText is the end of "a lost path is tried again ...".
func attemptsText(n int) string {
	if n < 0 {
		return "without end"
	}
	return fmt.Sprintf("%d times", n)
}
