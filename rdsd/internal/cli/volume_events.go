package cli

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) volumeEventsCmd() *cobra.Command {
	var after, count, instance uint64
	var kept bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "follow what happens to volumes: paths, sessions, failovers, errors",
		Long: `Print what happens to volumes from now on, one line each, until Ctrl-C: paths and
sessions that come and go, requests that move to another path, mappings and
exports that change their state, resizes, errors. Each event has a number;
--after N begins behind event N, as far as the daemon still has it, and what is
missing is said. The numbers begin anew when the daemon starts: --instance says of
which start N is (in --json each event has it), so that events between are not
passed over in silence.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if kept && after > 0 {
				return usagef("--kept begins with the oldest event and --after with a certain one: choose one")
			}
			if cmd.Flags().Changed("instance") && after == 0 {
				return usagef("--instance says of which start of the daemon the number of --after is: give both")
			}
			var opts []rdsd.WatchOption
			switch {
			case kept:
				opts = append(opts, rdsd.WatchKept())
			case after > 0:
				opts = append(opts, rdsd.WatchAfter(after), rdsd.WatchOf(instance))
			}
			return a.volumesStream(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				return a.followEvents(ctx, v, count, opts)
			})
		},
	}
	cmd.Flags().BoolVar(&kept, "kept", false, "begin with the events the daemon still has")
	cmd.Flags().Uint64Var(&after, "after", 0, "begin behind the event of this number")
	cmd.Flags().Uint64Var(&instance, "instance", 0, "of the daemon that gave the event of --after its number (default this one)")
	cmd.Flags().Uint64VarP(&count, "count", "n", 0, "end after so many events (default never)")
	return cmd
}

func (a *app) followEvents(ctx context.Context, v *rdsd.Volumes, count uint64, opts []rdsd.WatchOption) error {
	n := uint64(0)
	events := opened(ctx, a, func(ctx context.Context) iter.Seq2[*rdsd.VolumeEvent, error] { return v.Watch(ctx, opts...) })
	for e, err := range events {
		if err != nil {
			return interrupted(ctx, dial.Cause(err))
		}
		if a.json {
			err = writeNDJSON(a.out, e)
		} else {
			_, err = fmt.Fprintf(a.out, "%s  %-5d %-8s  %s\n", e.Time.Format("15:04:05.000"), e.Number, plain.Text(string(e.Kind)), plain.Text(eventText(e)))
		}
		if err != nil {
			return err
		}
		if n++; n == count {
			return nil
		}
	}
	return nil
}

// eventText is the event in words: the daemon's, or what can be said without.
func eventText(e *rdsd.VolumeEvent) string {
	if e.Text != "" {
		return e.Text
	}
	var words []string
	for _, w := range []struct{ what, value string }{{"mapping", e.Mapping}, {"export", e.Export}, {"session", e.Session}} {
		if w.value != "" {
			words = append(words, w.what+" "+w.value)
		}
	}
	if e.Path != nil {
		words = append(words, "path "+pathText(*e.Path))
	}
	if e.Kind == rdsd.EventGap {
		words = append(words, fmt.Sprintf("%s are missing here", plural(e.Count, "event")))
	} else if e.Count > 0 {
		words = append(words, plural(e.Count, "request"))
	}
	if e.State != "" {
		words = append(words, e.State)
	}
	if e.Err != nil {
		words = append(words, e.Err.Error())
	}
	return strings.Join(words, ", ")
}

func (a *app) volumeCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [VOLUME | SESSION]",
		Short: "look for what is wrong with volumes, and say what would be right",
		Long: `Check a mapping, an export or a session, or, without an argument, everything: paths
that are down, stores that fail, settings that cannot work here. Each finding is
ok, a warning (it works, but not as it could) or an error, with what would be
right. The exit code is 1 if there is an error.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("one VOLUME or SESSION is meant, but there are %d arguments: %q", len(args), args)
			}
			return nil
		},
		ValidArgsFunction: a.completeVolumeFirst(exportWords, mappingWords, sessionWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := ""
			if len(args) == 1 {
				what = mappingName(args[0])
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				found, err := v.Check(ctx, what)
				if err != nil {
					return err
				}
				return a.printFindings(found)
			})
		},
	}
	return cmd
}

func (a *app) printFindings(found []rdsd.VolumeFinding) error {
	wrong := uint64(0)
	for _, f := range found {
		if f.Severity == rdsd.SeverityError {
			wrong++
		}
	}
	if a.json {
		if err := writeJSON(a.out, found); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		for _, f := range found {
			fmt.Fprintf(w, "%s\t%s\t%s\n", f.Severity, plain.Text(f.What), plain.Text(f.Text))
			if f.Remedy != "" {
				fmt.Fprintf(w, "\t\tto do: %s\n", plain.Text(f.Remedy))
			}
		}
		w.Flush()
		if len(found) == 0 {
			fmt.Fprintln(a.out, "nothing to check: nothing is exported and nothing is mapped")
		}
	}
	if wrong > 0 {
		return withCode(exitFailed, fmt.Errorf("the check found %s", plural(wrong, "error")))
	}
	return nil
}
