package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) errorsCmd() *cobra.Command {
	return aList(a.reader(&cobra.Command{
		Use:   "errors",
		Short: "show the distinct warnings and errors of the daemon's log",
		Long: `Show what the daemon's log has said of errors, the last one first: lines that say
the same of the same thing are one, with the first and the last time and how many
they were, those among them that log.lines_per_second left out. The daemon keeps
512 of them, 16 of one message; the table begins anew when it starts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				v, err := c.Errors(ctx)
				if err != nil {
					return err
				}
				now := c.Now()
				cols := append([]column[rdsd.LoggedError]{
					{"last", func(e rdsd.LoggedError) any { return ago(now, e.Last) }},
					{"first", func(e rdsd.LoggedError) any { return ago(now, e.First) }},
				}, errorColumns...)
				if err := printList(a, v.Errors, cols, "no warnings and no errors were logged since the daemon started"); err != nil {
					return err
				}
				if v.Forgotten > 0 {
					fmt.Fprintf(a.err, "rdsd: %s had to make room for these\n", plural(v.Forgotten, "older one"))
				}
				return nil
			})
		},
	}))
}

var errorColumns = []column[rdsd.LoggedError]{
	{"count", func(e rdsd.LoggedError) any { return e.Count }},
	{"severity", func(e rdsd.LoggedError) any { return e.Severity }},
	{"what", func(e rdsd.LoggedError) any { return e.Message }},
	{"of", func(e rdsd.LoggedError) any { return orDash(e.Subject) }},
	{"why", func(e rdsd.LoggedError) any { return orDash(e.Error) }},
}

// ago is the time from then to now.
func ago(now, then time.Time) string {
	d := now.Sub(then)
	if d < time.Second {
		return "now"
	}
	return d.Round(time.Second).String() + " ago"
}
