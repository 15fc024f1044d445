package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// volumesView is what `volume ls --json` prints.
type volumesView struct {
	Exports  []exportView  `json:"exports"`
	Mappings []mappingView `json:"mappings"`
}

func (a *app) volumeLsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list what is exported here and what is mapped from other nodes",
		Long: `List the exports of this node and the volumes mapped from others.

STATE of an export: open, closed (its store is opened when a node comes), failed.
STATE of a mapping: init (it was not open yet), open, closed (no path, or the
other node has closed it; opened again by itself), unmapped (on its way out).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, c *rdsd.Volumes) error {
				exports, mappings, err := c.List(ctx)
				if err != nil {
					return err
				}
				v := volumesView{[]exportView{}, []mappingView{}}
				for _, x := range exports {
					v.Exports = append(v.Exports, viewExport(x))
				}
				for _, m := range mappings {
					v.Mappings = append(v.Mappings, viewMapping(m))
				}
				if a.json {
					return writeJSON(a.out, v)
				}
				a.printVolumes(v)
				return nil
			})
		},
	}
}

func (a *app) printVolumes(v volumesView) {
	if len(v.Exports) == 0 && len(v.Mappings) == 0 {
		fmt.Fprintln(a.out, "no volumes: nothing is exported and nothing is mapped")
		return
	}
	if len(v.Exports) > 0 {
		writeTable(a.out, v.Exports, exportColumns)
	}
	if len(v.Exports) > 0 && len(v.Mappings) > 0 {
		fmt.Fprintln(a.out)
	}
	if len(v.Mappings) > 0 {
		writeTable(a.out, v.Mappings, mappingColumns)
	}
}

var exportColumns = []column[exportView]{
	{"export", func(x exportView) any { return x.Name }},
	{"size", func(x exportView) any { return sizeOf(x.Info) }},
	{"kind", func(x exportView) any { return x.Kind }},
	{"state", func(x exportView) any { return x.State }},
	{"access", func(x exportView) any { return accessText(x) }},
	{"users", func(x exportView) any { return len(x.Users) }},
	{"persist", func(x exportView) any { return yesNo(x.Persist || x.Origin == string(rdsd.OriginConfig)) }},
	{"store", func(x exportView) any { return orDash(x.Path) }},
	{"error", func(x exportView) any { return x.Error }},
}

// accessText says who may write an export.
func accessText(x exportView) string {
	switch {
	case x.ReadOnly:
		return "ro"
	case x.Shared:
		return "rw, shared"
	}
	return "rw"
}

var mappingColumns = []column[mappingView]{
	{"mapping", func(m mappingView) any { return m.ID }},
	{"volume", func(m mappingView) any { return volumeText(m.Node, m.Name) }},
	{"size", func(m mappingView) any { return sizeOf(m.Info) }},
	{"state", func(m mappingView) any { return m.State }},
	{"access", func(m mappingView) any { return m.Access }},
	{"paths", func(m mappingView) any { return fmt.Sprintf("%d/%d", m.PathsUp, m.PathCount) }},
	{"users", func(m mappingView) any { return m.Users }},
	{"persist", func(m mappingView) any { return yesNo(m.Persist) }},
	{"last error", func(m mappingView) any { return orDash(m.LastError) }},
	{"device", func(m mappingView) any { return m.Device }},
}

// find looks for an export or a mapping; one of them is not nil.
func find(ctx context.Context, v *rdsd.Volumes, what string) (*rdsd.Export, *rdsd.Mapping, error) {
	x, err := v.ExportNamed(ctx, what)
	if err != nil && !errors.Is(err, rdserr.ErrNotFound) {
		return nil, nil, err
	}
	m, err := v.Mapping(ctx, mappingName(what))
	if err != nil && !errors.Is(err, rdserr.ErrNotFound) {
		return nil, nil, err
	}
	switch {
	case x != nil && m != nil:
		return nil, nil, usagef("%s is an export and a mapping; name the mapping as %s or by its device", what, volumeText(m.Node, m.Name))
	case x == nil && m == nil:
		return nil, nil, rdserr.With(rdserr.ErrNotFound, "there is no export and no mapping %q; rdsd volume ls shows those there are", what)
	}
	return x, m, nil
}

func (a *app) volumeShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show VOLUME",
		Short: "show all of an export or a mapping: state, settings, counters, latencies",
		Long: `Show an export, by name, or a mapping, by its id, its device or NODE:NAME: state,
settings, who uses it, and what became of the requests of each operation. The
latencies are at most a quarter too high.`,
		Args:              needArgs("VOLUME", "the name of an export, or "+mappingMeaning),
		ValidArgsFunction: a.completeVolumeFirst(exportWords, mappingWords),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				x, m, err := find(ctx, v, args[0])
				switch {
				case err != nil:
					return err
				case a.json && x != nil:
					return writeJSON(a.out, viewExport(x))
				case a.json:
					return writeJSON(a.out, viewMapping(m))
				case x != nil:
					a.showExport(viewExport(x))
				default:
					a.showMapping(viewMapping(m))
				}
				return nil
			})
		},
	}
}

// facts prints lines of a name and a value, leaving out what is empty.
func (a *app) facts(lines [][2]string) {
	for _, l := range lines {
		if l[1] != "" {
			fmt.Fprintf(a.out, "%-12s %s\n", l[0], l[1])
		}
	}
}

func (a *app) showExport(x exportView) {
	who := "everybody that may connect"
	if len(x.Allow)+len(x.AllowSessions) > 0 {
		who = strings.Trim(prefixText(x.Allow)+"; sessions "+strings.Join(x.AllowSessions, ", "), "; ")
		who = strings.TrimSuffix(who, "; sessions")
	}
	a.facts([][2]string{
		{"export", x.Name},
		{"state", stateFor(x.State, x.For, x.Error)},
		{"store", strings.TrimSpace(x.Kind + " " + x.Path)},
		{"access", accessText(x)},
		{"open to", who},
		{"origin", map[string]string{"config": "the configuration file", "call": "rdsd volume export", "root": "an export root"}[x.Origin]},
		{"persist", yesNo(x.Persist || x.Origin == string(rdsd.OriginConfig))},
	})
	a.infoFacts(x.Info)
	if len(x.Users) > 0 {
		fmt.Fprintln(a.out)
		writeTable(a.out, x.Users, []column[userView]{
			{"open by", func(u userView) any { return u.Session }},
			{"at", func(u userView) any { return addrText(u.Peer) }},
			{"access", func(u userView) any { return u.Access }},
			{"for", func(u userView) any { return u.For }},
		})
	}
	a.printOps(x.Ops)
}

func (a *app) showMapping(m mappingView) {
	onLoss := m.OnLoss
	if m.OnLoss == string(rdsd.OnLossError) {
		onLoss = "error after " + m.LossTimeout.String()
	}
	a.facts([][2]string{
		{"mapping", m.ID},
		{"volume", volumeText(m.Node, m.Name)},
		{"state", stateFor(m.State, m.For, m.LastError)},
		{"device", m.Device},
		{"uri", m.URI},
		{"access", m.Access},
		{"users", fmt.Sprint(m.Users)},
		{"session", fmt.Sprintf("%s (%s), %d of %s connected, %s", m.Session, m.SessionID, m.PathsUp, plural(uint64(m.PathCount), "path"), m.Policy)},
		{"waiting", plural(uint64(m.Waiting), "request")},
		{"io timeout", m.IOTimeout.String()},
		{"on loss", onLoss},
		{"persist", yesNo(m.Persist)},
	})
	a.infoFacts(m.Info)
	a.printOps(m.Ops)
}

func stateFor(state string, d duration, why string) string {
	s := fmt.Sprintf("%s for %s", state, d)
	if why != "" {
		s += "; last error: " + why
	}
	return s
}

// infoFacts prints what a volume is.
func (a *app) infoFacts(i *volumeInfoView) {
	if i == nil {
		return
	}
	discard := "no"
	if i.MaxDiscard > 0 {
		discard = "in granules of " + sizeText(uint64(i.DiscardGranularity))
		if i.DiscardGranularity == 0 {
			discard = "yes"
		}
	}
	var traits []string
	for _, t := range []struct {
		is   bool
		text string
	}{
		{i.ReadOnly, "read-only"},
		{i.WriteCache, "write cache: durable after a flush"},
		{i.FUA, "FUA"},
		{i.MaxWriteZeroes > 0, "write zeroes"},
		{i.Rotational, "rotational"},
	} {
		if t.is {
			traits = append(traits, t.text)
		}
	}
	a.facts([][2]string{
		{"size", sizeText(uint64(i.Size))},
		{"blocks", fmt.Sprintf("%d bytes logical, %d physical", i.LogicalBlock, i.PhysicalBlock)},
		{"largest I/O", sizeText(uint64(i.MaxIO))},
		{"discard", discard},
		{"traits", strings.Join(traits, ", ")},
	})
}

func (a *app) printOps(ops []volumeOpView) {
	if len(ops) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	writeTable(a.out, ops, opColumns)
}

// remoteView is what `volume info --json` prints.
type remoteView struct {
	Node       string          `json:"node"`
	Name       string          `json:"name"`
	QueueDepth uint32          `json:"queue_depth"`
	Info       *volumeInfoView `json:"info"`
}

func (a *app) volumeInfoCmd() *cobra.Command {
	var paths []string
	var session string
	cmd := &cobra.Command{
		Use:   "info NODE:NAME",
		Short: "ask another node about a volume, without mapping it",
		Long: `Open the volume NAME of NODE for reading, show what it is, and close it. Nothing
is mapped; a writer elsewhere is not disturbed.`,
		Args:              needArgs("NODE:NAME", "a node and the name of a volume it exports"),
		ValidArgsFunction: a.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := (&mapOptions{paths: paths, session: session}).spec(args[0])
			if err != nil {
				return err
			}
			return a.volumes(cmd.Context(), func(ctx context.Context, v *rdsd.Volumes) error {
				r, err := v.Info(ctx, spec)
				if err != nil {
					return withHint(err, spec.Node, spec.Name)
				}
				view := remoteView{r.Node, r.Name, r.QueueDepth, viewVolumeInfo(&r.Info)}
				if a.json {
					return writeJSON(a.out, view)
				}
				a.facts([][2]string{{"volume", volumeText(r.Node, r.Name)}})
				view.Info.ReadOnly = false // it was opened so, which says nothing of the volume
				a.infoFacts(view.Info)
				a.facts([][2]string{{"queue depth", fmt.Sprint(r.QueueDepth)}})
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVar(&paths, "path", nil, "ask over this path, SRC,DST or DST")
	cmd.Flags().StringVar(&session, "session", "", "name of the session (default made of both nodes' names)")
	return cmd
}
