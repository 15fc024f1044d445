package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) statusCmd() *cobra.Command {
	return a.reader(&cobra.Command{
		Use:   "status",
		Short: "show the daemon: version, addresses, peers, budgets, problems",
		Long: `Show the daemon as a whole. At the end stand its problems, the worst first: what
is not as it should be, and what to do about it. docs/operations.md has the codes of
all of them. With --json healthy is false while one of them is a warning or an
error; 'rdsd check' has an exit code for that.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return writeJSON(a.out, st)
				}
				a.printStatus(st)
				return nil
			})
		},
	})
}

func (a *app) printStatus(v *rdsd.Status) {
	addrs := make([]string, len(v.LocalAddresses))
	for i, ad := range v.LocalAddresses {
		addrs[i] = ad.String()
	}
	config := v.ConfigFile
	if config == "" {
		config = "none (defaults)"
	}
	for _, l := range [][2]string{
		{"rdsd", fmt.Sprintf("%s, %s for %s", v.Version, v.State, duration(v.Uptime))},
		{"instance", fmt.Sprintf("%#x", v.Instance)},
		{"addresses", fmt.Sprintf("%s, RDS over TCP port %d", strings.Join(addrs, ", "), v.RDSPort)},
		{"peers", fmt.Sprintf("%d, %d up", v.Peers, v.PeersUp)},
		{"sockets", fmt.Sprint(v.Sockets)},
		{"memory", fmt.Sprintf("%s of %s", bytesCount(v.MemoryUsedBytes), bytesCount(v.MemoryBudgetBytes))},
		{"config", config},
		{"health", healthText(v)},
	} {
		fmt.Fprintf(a.out, "%-10s %s\n", l[0], plain.Text(l[1]))
	}
	if len(v.Budgets) > 0 {
		fmt.Fprintln(a.out)
		writeTable(a.out, v.Budgets, budgetColumns)
	}
	if len(v.Problems) > 0 {
		fmt.Fprintln(a.out)
		writeProblems(a.out, v.Problems)
	}
}

// healthText sums the problems up: "good", "good, 1 note", "2 errors, 1 warning".
func healthText(v *rdsd.Status) string {
	if v.Severity == "" {
		return "not known: this daemon does not say"
	}
	counts := map[rdsd.Severity]uint64{}
	for _, p := range v.Problems {
		counts[p.Severity]++
	}
	var words []string
	if v.Healthy {
		words = append(words, "good")
	}
	for _, s := range []rdsd.Severity{rdsd.SeverityError, rdsd.SeverityWarning, rdsd.SeverityNote} {
		if n := counts[s]; n > 0 {
			words = append(words, plural(n, string(s)))
		}
	}
	return strings.Join(words, ", ")
}

// writeProblems writes each with its remedy.
func writeProblems(w io.Writer, list []rdsd.Problem) {
	for _, p := range list {
		head := p.Code
		if p.Subject != "" {
			head += ": " + p.Subject
		}
		if p.Since > 0 {
			head += ", for " + duration(p.Since).String()
		}
		fmt.Fprintf(w, "%-8s %s\n         %s\n         to do: %s\n", p.Severity, plain.Text(head), plain.Text(p.Text), plain.Text(p.Remedy))
	}
}

var budgetColumns = []column[rdsd.Budget]{
	{"budget", func(b rdsd.Budget) any { return b.Name }},
	{"used", func(b rdsd.Budget) any { return b.Used }},
	{"limit", func(b rdsd.Budget) any { return b.Limit }},
	{"used %", func(b rdsd.Budget) any { return percent(b.Used, b.Limit) }},
	{"refused", func(b rdsd.Budget) any { return b.Refused }},
}

func percent(used, limit uint64) string {
	if limit == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", 100*float64(used)/float64(limit))
}
