package cli

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
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
			fit = offered(list(ctx, c), typed)
			return nil
		})
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// offered are the words that begin as typed, as far as they can stand in a line as they are. Of several words bash
// inserts what they have in common unquoted, and at the next tab it expands the line, with all commands in
// it; and what other nodes call their sessions may be anything.
func offered(words []string, typed string) (fit []string) {
	for _, w := range words {
		word, about, described := strings.Cut(w, "\t")
		if !strings.HasPrefix(word, typed) || strings.HasPrefix(word, "-") || strings.ContainsFunc(word, notItself) {
			continue
		}
		if described {
			w = word + "\t" + plain.Text(about)
		}
		fit = append(fit, w)
	}
	return fit
}

// notItself reports whether a shell may take r for something else than r.
func notItself(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.,:/@+%=[]", r)
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
