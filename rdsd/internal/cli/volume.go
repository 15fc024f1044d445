package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

func (a *app) volumeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "volume",
		Aliases: []string{"vol"},
		Short:   "serve volumes to other nodes and map theirs",
		Long: `A volume is a file, a block device or memory of one node that other nodes use as
a block device of their own. 'rdsd volume export' offers one, 'rdsd volume map'
on another node makes a device of it: an NBD export on a Unix socket, which
qemu, fio and nbdcopy open, or /dev/nbdN of the kernel.

A mapping survives the loss of paths and restarts of either daemon. The nodes
need not know each other beforehand; docs/volumes.md is the guide.`,
		Example: `  store$ rdsd volume export disk --create /srv/volumes/disk.img --size 20G --persist
  app$   rdsd volume map store:disk --as nbd --persist
  /dev/nbd0`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddGroup(
		&cobra.Group{ID: "use", Title: "Use volumes of other nodes:"},
		&cobra.Group{ID: "serve", Title: "Serve volumes:"},
		&cobra.Group{ID: "look", Title: "Look:"},
	)
	for _, g := range []struct {
		id   string
		cmds []*cobra.Command
	}{
		{"use", []*cobra.Command{a.volumeMapCmd(), a.volumeUnmapCmd(), a.volumeRemapCmd(), a.volumeInfoCmd(), a.volumeCopyCmd()}},
		{"serve", []*cobra.Command{a.volumeExportCmd(), a.volumeUnexportCmd(), a.volumeForceCloseCmd(), a.volumeResizeCmd()}},
		{"look", []*cobra.Command{a.volumeLsCmd(), a.volumeShowCmd(), a.volumeSessionsCmd(), a.volumePathsCmd(), a.volumeEventsCmd(), a.volumeCheckCmd()}},
	} {
		for _, c := range g.cmds {
			c.GroupID = g.id
			cmd.AddCommand(c)
		}
	}
	return cmd
}

// volumes runs fn with the volumes of the daemon, within --timeout.
func (a *app) volumes(ctx context.Context, fn func(context.Context, *rdsd.Volumes) error) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return a.volumesStream(ctx, fn)
}

// volumesStream is volumes without a deadline.
func (a *app) volumesStream(ctx context.Context, fn func(context.Context, *rdsd.Volumes) error) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return dial.Cause(fn(ctx, c.Volumes()))
}

// flagWords completes a flag that takes one of a few words.
func flagWords[W ~string](cmd *cobra.Command, flag string, words []W) {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
}
