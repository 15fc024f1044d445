package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// completionTime is how long a shell is kept waiting for words.
const completionTime = time.Second

// volumeLister returns words for shell completion, "word\tdescription".
type volumeLister func(context.Context, *rdsd.Volumes) []string

// completeVolume asks the daemon, when there is one, as complete does.
func (a *app) completeVolume(lists ...volumeLister) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		var fit []string
		a.volumesStream(ctx, func(ctx context.Context, v *rdsd.Volumes) error {
			for _, list := range lists {
				fit = append(fit, offered(list(ctx, v), typed)...)
			}
			return nil
		})
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeVolumeFirst completes the first argument only.
func (a *app) completeVolumeFirst(lists ...volumeLister) cobra.CompletionFunc {
	fn := a.completeVolume(lists...)
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fn(cmd, args, typed)
	}
}

// completeNodes completes the NODE of NODE:NAME: where volumes are mapped from
// already, and the peers.
func (a *app) completeNodes(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	fit, _ := a.completeVolume(func(ctx context.Context, v *rdsd.Volumes) []string {
		_, mappings, _ := v.List(ctx)
		var words []string
		for _, m := range mappings {
			words = append(words, volumeText(m.Node, ""))
		}
		slices.Sort(words)
		return slices.Compact(words)
	})(cmd, args, typed)
	peers, _ := a.complete(listPeerWords)(cmd, args, typed)
	for _, p := range peers {
		node, _, _ := strings.Cut(p, "\t")
		if w := volumeText(node, ""); !slices.Contains(fit, w) {
			fit = append(fit, w)
		}
	}
	return fit, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func exportWords(ctx context.Context, v *rdsd.Volumes) []string {
	exports, _, _ := v.List(ctx)
	var words []string
	for _, x := range exports {
		words = append(words, x.Name+"\texport, "+string(x.State))
	}
	return words
}

// userWords lists the sessions that have an export open.
func userWords(export string) volumeLister {
	return func(ctx context.Context, v *rdsd.Volumes) []string {
		x, err := v.ExportNamed(ctx, export)
		if err != nil {
			return nil
		}
		var words []string
		for _, u := range x.Users {
			words = append(words, u.Session+"\t"+u.Peer.String()+", "+string(u.Access))
		}
		return words
	}
}

func mappingWords(ctx context.Context, v *rdsd.Volumes) []string {
	_, mappings, _ := v.List(ctx)
	var words []string
	for _, m := range mappings {
		words = append(words, m.ID+"\t"+volumeText(m.Node, m.Name)+", "+string(m.State))
	}
	return words
}

func sessionWords(ctx context.Context, v *rdsd.Volumes) []string {
	sessions, _ := v.Sessions(ctx)
	var words []string
	for _, s := range sessions {
		words = append(words, s.Name+"\t"+string(s.Role)+", "+upDown(s.Up))
	}
	return words
}

func pathWords(session string) volumeLister {
	return func(ctx context.Context, v *rdsd.Volumes) []string {
		paths, _ := v.Paths(ctx, session)
		var words []string
		for _, p := range paths {
			words = append(words, p.Src+","+p.Dst+"\t"+string(p.State))
		}
		return words
	}
}
