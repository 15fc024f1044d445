package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) statusCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the daemon: version, addresses, peers, budgets",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.admin(cmd.Context(), func(ctx context.Context, c *rdsd.Admin) error {
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
	}
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
	} {
		fmt.Fprintf(a.out, "%-10s %s\n", l[0], l[1])
	}
	if len(v.Budgets) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	writeTable(a.out, v.Budgets, budgetColumns)
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
