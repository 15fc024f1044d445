package cli

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/top"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) topCmd() *cobra.Command {
	var o top.Options
	var batch bool
	var view string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "watch peers, sockets, congestion, volumes and problems",
		Long: `Show what the daemon is doing, anew each interval, until q.

  1 to 5, tab   peers, sockets, congestion, volumes, problems
  up, down, page up, page down, home, end
                choose a line; enter shows all of it, esc goes back
  < and >, r    sort by another column; the other way around
  /             show only lines with a text in them; esc shows all again
  space         stop and go on

SENT and RECEIVED of peers are bytes a second, SENT and READ of sockets datagrams a
second. -b prints plain text instead, for files and pipes: all views, or those of
--view, -n times.`,
		Example: `  rdsd top
  rdsd top -b -n1
  rdsd top -b -n1 --view sockets --sort unread --filter db`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := topOptions(&o, view); err != nil {
				return err
			}
			if a.json {
				return usagef("top has no JSON: rdsd info --json has all that it shows")
			}
			if batch {
				return a.shots(cmd.Context(), func(ctx context.Context, s top.Source) error {
					o.Source = s
					return top.Print(ctx, a.out, o)
				})
			}
			in, inOK := a.in.(*os.File)
			out, outOK := fileOf(a.out)
			if !inOK || !outOK || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
				return usagef("top needs a terminal; rdsd top -b -n1 prints plain text")
			}
			return a.shots(cmd.Context(), func(ctx context.Context, s top.Source) error {
				o.Source = s
				return top.Run(ctx, in, out, os.Environ(), o)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&batch, "batch", "b", false, "print plain text instead of a screen")
	f.IntVarP(&o.Times, "count", "n", 0, "with -b: so many times (default until interrupted)")
	f.DurationVarP(&o.Interval, "delay", "d", time.Second, "time between two looks, at least 100ms")
	f.StringVar(&view, "view", "", "begin with this one, or with -b only these, with commas: "+strings.Join(top.ViewNames, ", "))
	f.StringVar(&o.Sort, "sort", "", "sort by the column of this heading")
	f.BoolVar(&o.Reverse, "reverse", false, "sort the other way around")
	f.StringVar(&o.Filter, "filter", "", "only lines with this text in them")
	cmd.RegisterFlagCompletionFunc("view", cobra.FixedCompletions(top.ViewNames, cobra.ShellCompDirectiveNoFileComp))
	return a.reader(cmd)
}

// topOptions checks what was asked for.
func topOptions(o *top.Options, view string) error {
	if o.Interval < 100*time.Millisecond {
		return usagef("--delay %v: want at least 100ms", o.Interval)
	}
	if o.Times < 0 {
		return usagef("-n %d: it cannot be negative", o.Times)
	}
	for _, name := range strings.FieldsFunc(view, func(r rune) bool { return r == ',' }) {
		v, ok := top.ViewNamed(name)
		if !ok {
			return usagef("--view %q: want %s", name, strings.Join(top.ViewNames, ", "))
		}
		o.Views = append(o.Views, v)
	}
	if o.Sort == "" {
		return nil
	}
	views := o.Views
	if len(views) == 0 {
		views = []top.View{top.Peers}
	}
	for _, v := range views {
		if _, ok := top.Column(v, o.Sort); !ok {
			return usagef("--sort %q: %s has the columns %s", o.Sort, top.ViewNames[v], strings.Join(top.Headings(v), ", "))
		}
	}
	return nil
}

// shots runs fn with a source of shots, of a daemon or of an archive. The daemon's
// client lives as long as fn, and connects again by itself.
func (a *app) shots(ctx context.Context, fn func(context.Context, top.Source) error) error {
	if a.from != "" {
		r, err := openReport(a.from)
		if err != nil {
			return err
		}
		return fn(ctx, func(ctx context.Context) (*top.Shot, error) { return shotOf(ctx, r) })
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	l := live{c.Admin(), c.Volumes()}
	return dial.Cause(fn(ctx, func(ctx context.Context) (*top.Shot, error) {
		ctx, cancel := a.bounded(ctx)
		defer cancel()
		return shotOf(ctx, l)
	}))
}

func shotOf(ctx context.Context, c source) (*top.Shot, error) {
	s := &top.Shot{At: c.Now()}
	var err error
	if s.Status, err = c.Status(ctx); err != nil {
		return nil, err
	}
	if s.Peers, err = c.Peers(ctx, rdsd.PeerFilter{}); err != nil {
		return nil, err
	}
	if s.Sockets, err = c.Sockets(ctx); err != nil {
		return nil, err
	}
	if s.Congestion, _, err = c.Congestion(ctx); err != nil {
		return nil, err
	}
	v, err := c.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	s.Exports, s.Mappings = v.Exports, v.Mappings
	return s, nil
}
