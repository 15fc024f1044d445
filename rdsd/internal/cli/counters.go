package cli

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) countersCmd() *cobra.Command {
	var peer string
	var watch, explainAll, nonzero bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "counters",
		Short: "show the counters of the daemon or of one peer",
		Long: `Show the counters, under the names the kernel's rds-info -c uses, those of rdsd
alone after them. --watch prints what changed, once an interval.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var of netip.Addr
			if peer != "" {
				var err error
				if of, err = resolveHost(cmd.Context(), "--peer", peer); err != nil {
					return err
				}
			}
			if watch {
				if err := a.noWatch(); err != nil {
					return err
				}
				if interval <= 0 {
					return usagef("--interval %v: it must be longer than zero", interval)
				}
				return a.adminStream(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
					return a.watchCounters(ctx, c, of, interval)
				})
			}
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				list, err := c.Counters(ctx, of)
				if err != nil {
					return err
				}
				if nonzero {
					list = keepNonzero(list)
				}
				cols := counterColumns[:2]
				if explainAll {
					cols = counterColumns
				}
				return printList(a, list, cols, "no counters")
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&peer, "peer", "", "the counters of this peer only")
	cmd.RegisterFlagCompletionFunc("peer", a.complete(listPeerWords))
	f.BoolVar(&watch, "watch", false, "print what changed, until interrupted")
	f.DurationVar(&interval, "interval", time.Second, "time between two looks of --watch")
	f.BoolVar(&explainAll, "explain", false, "say what each counter counts")
	f.BoolVar(&nonzero, "nonzero", false, "leave out counters that are zero")
	return aList(a.reader(cmd))
}

func keepNonzero(list []rdsd.Counter) []rdsd.Counter {
	out := []rdsd.Counter{}
	for _, c := range list {
		if c.Value != 0 {
			out = append(out, c)
		}
	}
	return out
}

var counterColumns = []column[rdsd.Counter]{
	{"counter", func(c rdsd.Counter) any { return c.Name }},
	{"value", func(c rdsd.Counter) any { return c.Value }},
	{"meaning", func(c rdsd.Counter) any { return c.Help }},
}

// counterChange is one line of --watch.
type counterChange struct {
	Time  time.Time `json:"time"`
	Name  string    `json:"name"`
	Value uint64    `json:"value"`
	Delta uint64    `json:"delta"`
}

// risen is how much a counter rose. One that is less than it was began anew with the daemon.
func risen(was, is uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}

func (a *app) watchCounters(ctx context.Context, c *rdsd.Admin, of netip.Addr, interval time.Duration) error {
	last := map[string]uint64{}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for first := true; ; first = false {
		look, cancel := a.bounded(ctx)
		list, err := c.Counters(look, of)
		cancel()
		if err != nil {
			return interrupted(ctx, err)
		}
		now := time.Now()
		for _, n := range list {
			if delta := risen(last[n.Name], n.Value); delta != 0 && !first {
				ch := counterChange{now, n.Name, n.Value, delta}
				if a.json {
					err = writeNDJSON(a.out, ch)
				} else {
					_, err = fmt.Fprintf(a.out, "%s  %-28s %16d  +%d\n", now.Format(time.TimeOnly), n.Name, n.Value, delta)
				}
				if err != nil {
					return err
				}
			}
			last[n.Name] = n.Value
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// interrupted makes the end of a watch by Ctrl-C a success.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
