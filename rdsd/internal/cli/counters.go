package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
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
			b := rdsdv1.GetCountersRequest_builder{}
			if peer != "" {
				addr, err := resolveHost(cmd.Context(), "--peer", peer)
				if err != nil {
					return err
				}
				b.Remote = addr.AsSlice()
			}
			if watch {
				if interval <= 0 {
					return usagef("--interval %v: it must be longer than zero", interval)
				}
				return a.adminStream(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
					return a.watchCounters(ctx, c, b.Build(), interval)
				})
			}
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				list, err := fetchCounters(ctx, c, b.Build())
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
	return cmd
}

func fetchCounters(ctx context.Context, c rdsdv1.AdminClient, req *rdsdv1.GetCountersRequest) ([]counterView, error) {
	resp, err := c.GetCounters(ctx, req)
	if err != nil {
		return nil, err
	}
	var list []counterView
	for _, n := range resp.GetCounter() {
		list = append(list, counterView{n.GetName(), n.GetValue(), n.GetHelp()})
	}
	return list, nil
}

func keepNonzero(list []counterView) []counterView {
	out := []counterView{}
	for _, c := range list {
		if c.Value != 0 {
			out = append(out, c)
		}
	}
	return out
}

var counterColumns = []column[counterView]{
	{"counter", func(c counterView) any { return c.Name }},
	{"value", func(c counterView) any { return c.Value }},
	{"meaning", func(c counterView) any { return c.Help }},
}

// counterChange is one line of --watch.
type counterChange struct {
	Time  time.Time `json:"time"`
	Name  string    `json:"name"`
	Value uint64    `json:"value"`
	Delta uint64    `json:"delta"`
}

func (a *app) watchCounters(ctx context.Context, c rdsdv1.AdminClient, req *rdsdv1.GetCountersRequest, interval time.Duration) error {
	last := map[string]uint64{}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for first := true; ; first = false {
		list, err := fetchCounters(ctx, c, req)
		if err != nil {
			return interrupted(ctx, err)
		}
		now := time.Now()
		for _, n := range list {
			if delta := n.Value - last[n.Name]; delta != 0 && !first {
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
