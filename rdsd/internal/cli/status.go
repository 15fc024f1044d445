package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

func (a *app) statusCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the daemon: version, addresses, peers, budgets",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.admin(cmd.Context(), func(ctx context.Context, c rdsdv1.AdminClient) error {
				st, err := c.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				v := viewStatus(st)
				if a.json {
					return writeJSON(a.out, v)
				}
				a.printStatus(v)
				return nil
			})
		},
	}
}

func (a *app) printStatus(v statusView) {
	addrs := make([]string, len(v.Addresses))
	for i, ad := range v.Addresses {
		addrs[i] = ad.String()
	}
	config := v.Config
	if config == "" {
		config = "none (defaults)"
	}
	for _, l := range [][2]string{
		{"rdsd", fmt.Sprintf("%s, %s for %s", v.Version, v.State, v.Uptime)},
		{"instance", fmt.Sprintf("%#x", v.Instance)},
		{"addresses", fmt.Sprintf("%s, RDS over TCP port %d", strings.Join(addrs, ", "), v.Port)},
		{"peers", fmt.Sprintf("%d, %d up", v.Peers, v.PeersUp)},
		{"sockets", fmt.Sprint(v.Sockets)},
		{"memory", fmt.Sprintf("%s of %s", v.MemoryUsed, v.MemoryLimit)},
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

var budgetColumns = []column[budgetView]{
	{"budget", func(b budgetView) any { return b.Name }},
	{"used", func(b budgetView) any { return b.Used }},
	{"limit", func(b budgetView) any { return b.Limit }},
	{"used %", func(b budgetView) any { return percent(b.Used, b.Limit) }},
	{"refused", func(b budgetView) any { return b.Refused }},
}

func percent(used, limit uint64) string {
	if limit == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", 100*float64(used)/float64(limit))
}
