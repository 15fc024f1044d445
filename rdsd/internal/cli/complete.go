package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// lister returns words for shell completion, "word\tdescription".
type lister func(context.Context, *rdsd.Admin) []string

// complete asks the daemon, when there is one, for the words that fit; shells
// must not be kept waiting.
func (a *app) complete(list lister) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		var fit []string
		a.adminStream(ctx, func(ctx context.Context, c *rdsd.Admin) error {
			for _, w := range list(ctx, c) {
				if strings.HasPrefix(w, typed) {
					fit = append(fit, w)
				}
			}
			return nil
		})
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFirst completes the first argument only.
func (a *app) completeFirst(list lister) cobra.CompletionFunc {
	fn := a.complete(list)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fn(cmd, args, typed)
	}
}

func listPeerWords(ctx context.Context, c *rdsd.Admin) []string {
	peers, _ := c.Peers(ctx, rdsd.PeerFilter{})
	var words []string
	for _, p := range peers {
		words = append(words, fmt.Sprintf("%s\t%s, %s", p.Remote, p.Kind, p.State))
	}
	return words
}

func listSocketWords(ctx context.Context, c *rdsd.Admin) []string {
	socks, _ := c.Sockets(ctx)
	var words []string
	for _, s := range socks {
		words = append(words, s.Local.String()+"\t"+s.Label)
	}
	return words
}
