package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// volumesView is what `volume ls --json` prints.
type volumesView struct {
	Exports  []*rdsd.Export  `json:"exports"`
	Mappings []*rdsd.Mapping `json:"mappings"`
}

func (a *app) volumeLsCmd() *cobra.Command {
	return aList(a.reader(&cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list what is exported here and what is mapped from other nodes",
		Long: `List the exports of this node and the volumes mapped from others.

STATE of an export: open, closed (its store is opened when a node comes), failed.
STATE of a mapping: init (it was not open yet), open, closed (no path, or the
other node has closed it; opened again by itself), unmapped (on its way out).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, c source) error {
				v, err := c.Volumes(ctx)
				switch {
				case err != nil:
					return err
				case a.json:
					return writeJSON(a.out, v)
				case a.form == formTSV:
					return writeTSV(a.out, volumeRows(v))
				}
				a.printVolumes(*v)
				return nil
			})
		},
	}))
}

// volumeRow is an export or a mapping as a line for programs.
type volumeRow struct {
	Sort      string `json:"sort"` // "export" or "mapping"
	Name      string `json:"name"` // of an export; the id of a mapping
	Node      string `json:"node"` // of a mapping
	Volume    string `json:"volume"`
	State     string `json:"state"`
	Size      uint64 `json:"size_bytes"` // 0: it was not open yet
	Where     string `json:"where"`      // the store of an export, the device of a mapping
	LastError string `json:"last_error"`
}

func volumeRows(v *volumesView) []volumeRow {
	var out []volumeRow
	size := func(i *rdsd.VolumeInfo) uint64 {
		if i == nil {
			return 0
		}
		return i.Size
	}
	for _, x := range v.Exports {
		out = append(out, volumeRow{"export", x.Name, "", x.Name, string(x.State), size(x.Info), x.Path, x.Error})
	}
	for _, m := range v.Mappings {
		out = append(out, volumeRow{"mapping", m.ID, m.Node, m.Name, string(m.State), size(m.Info), m.Device, m.LastError})
	}
	return out
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

var exportColumns = []column[*rdsd.Export]{
	{"export", func(x *rdsd.Export) any { return x.Name }},
	{"size", func(x *rdsd.Export) any { return sizeOf(x.Info) }},
	{"kind", func(x *rdsd.Export) any { return x.Kind }},
	{"state", func(x *rdsd.Export) any { return x.State }},
	{"access", func(x *rdsd.Export) any { return accessText(x) }},
	{"users", func(x *rdsd.Export) any { return len(x.Users) }},
	{"persist", func(x *rdsd.Export) any { return yesNo(x.Persist || x.Origin == rdsd.OriginConfig) }},
	{"store", func(x *rdsd.Export) any { return orDash(x.Path) }},
	{"error", func(x *rdsd.Export) any { return x.Error }},
}

// accessText says who may write an export.
func accessText(x *rdsd.Export) string {
	switch {
	case x.ReadOnly:
		return "ro"
	case x.Shared:
		return "rw, shared"
	}
	return "rw"
}

var mappingColumns = []column[*rdsd.Mapping]{
	{"mapping", func(m *rdsd.Mapping) any { return m.ID }},
	{"volume", func(m *rdsd.Mapping) any { return volumeText(m.Node, m.Name) }},
	{"size", func(m *rdsd.Mapping) any { return sizeOf(m.Info) }},
	{"state", func(m *rdsd.Mapping) any { return m.State }},
	{"access", func(m *rdsd.Mapping) any { return m.Access }},
	{"paths", func(m *rdsd.Mapping) any { return fmt.Sprintf("%d/%d", m.PathsUp, m.PathCount) }},
	{"users", func(m *rdsd.Mapping) any { return m.Users }},
	{"persist", func(m *rdsd.Mapping) any { return yesNo(m.Persist) }},
	{"last error", func(m *rdsd.Mapping) any { return orDash(m.LastError) }},
	{"device", func(m *rdsd.Mapping) any { return m.Device }},
}

// orDash is "-" for nothing.
func orDash[T comparable](v T) any {
	var zero T
	if v == zero {
		return "-"
	}
	return v
}

// sizeOf is "-" while a volume was not open.
func sizeOf(i *rdsd.VolumeInfo) any {
	if i == nil {
		return "-"
	}
	return bytesCount(i.Size)
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
					return writeJSON(a.out, x)
				case a.json:
					return writeJSON(a.out, m)
				case x != nil:
					a.showExport(x)
				default:
					a.showMapping(m)
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
			say(a.out, "%-12s %s\n", l[0], l[1])
		}
	}
}

// originText says where an export comes from.
var originText = map[rdsd.VolumeOrigin]string{
	rdsd.OriginConfig: "the configuration file",
	rdsd.OriginCall:   "rdsd volume export",
	rdsd.OriginRoot:   "an export root",
}

func (a *app) showExport(x *rdsd.Export) {
	who := "everybody that may connect"
	if len(x.AllowAddresses)+len(x.AllowSessions) > 0 {
		who = strings.Trim(prefixText(x.AllowAddresses)+"; sessions "+strings.Join(x.AllowSessions, ", "), "; ")
		who = strings.TrimSuffix(who, "; sessions")
	}
	a.facts([][2]string{
		{"export", x.Name},
		{"state", stateFor(x.State, x.StateFor, x.Error)},
		{"store", strings.TrimSpace(string(x.Kind) + " " + x.Path)},
		{"access", accessText(x)},
		{"open to", who},
		{"origin", originText[x.Origin]},
		{"persist", yesNo(x.Persist || x.Origin == rdsd.OriginConfig)},
	})
	a.infoFacts(x.Info)
	if len(x.Users) > 0 {
		fmt.Fprintln(a.out)
		writeTable(a.out, x.Users, []column[rdsd.VolumeUser]{
			{"open by", func(u rdsd.VolumeUser) any { return u.Session }},
			{"at", func(u rdsd.VolumeUser) any { return addrText(u.Peer) }},
			{"kind", func(u rdsd.VolumeUser) any { return peerKind(u.Kernel) }},
			{"access", func(u rdsd.VolumeUser) any { return u.Access }},
			{"for", func(u rdsd.VolumeUser) any { return duration(u.OpenFor) }},
		})
	}
	a.printOps(x.Ops)
}

func (a *app) showMapping(m *rdsd.Mapping) {
	onLoss := string(m.OnLoss)
	if m.OnLoss == rdsd.OnLossError {
		onLoss = "error after " + duration(m.LossTimeout).String()
	}
	a.facts([][2]string{
		{"mapping", m.ID},
		{"volume", volumeText(m.Node, m.Name)},
		{"state", stateFor(m.State, m.StateFor, m.LastError)},
		{"device", m.Device},
		{"uri", m.URI},
		{"access", string(m.Access)},
		{"users", fmt.Sprint(m.Users)},
		{"session", fmt.Sprintf("%s (%s), %d of %s connected, %s", m.Session, m.SessionID, m.PathsUp, plural(uint64(m.PathCount), "path"), m.Policy)},
		{"waiting", plural(uint64(m.Waiting), "request") + " of the session"},
		{"io timeout", duration(m.IOTimeout).String()},
		{"on loss", onLoss},
		{"persist", yesNo(m.Persist)},
	})
	a.infoFacts(m.Info)
	a.printOps(m.Ops)
}

func stateFor[S ~string](state S, d time.Duration, why string) string {
	s := fmt.Sprintf("%s for %s", state, duration(d))
	if why != "" {
		s += "; last error: " + why
	}
	return s
}

// infoFacts prints what a volume is.
func (a *app) infoFacts(i *rdsd.VolumeInfo) {
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
		{"size", sizeText(i.Size)},
		{"blocks", fmt.Sprintf("%d bytes logical, %d physical", i.LogicalBlock, i.PhysicalBlock)},
		{"largest I/O", sizeText(uint64(i.MaxIO))},
		{"discard", discard},
		{"traits", strings.Join(traits, ", ")},
	})
}

var opColumns = []column[rdsd.VolumeOp]{
	{"operation", func(o rdsd.VolumeOp) any { return o.Op }},
	{"done", func(o rdsd.VolumeOp) any { return o.Completed }},
	{"in flight", func(o rdsd.VolumeOp) any { return o.InFlight() }},
	{"errors", func(o rdsd.VolumeOp) any { return o.Errors }},
	{"bytes", func(o rdsd.VolumeOp) any { return bytesCount(o.Bytes) }},
	{"mean", func(o rdsd.VolumeOp) any { return duration(o.Mean()) }},
	{"p50", func(o rdsd.VolumeOp) any { return duration(o.P50) }},
	{"p99", func(o rdsd.VolumeOp) any { return duration(o.P99) }},
	{"p99.9", func(o rdsd.VolumeOp) any { return duration(o.P999) }},
}

func (a *app) printOps(ops []rdsd.VolumeOp) {
	if len(ops) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	writeTable(a.out, ops, opColumns)
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
				if a.json {
					return writeJSON(a.out, r)
				}
				a.facts([][2]string{{"volume", volumeText(r.Node, r.Name)}})
				r.Info.ReadOnly = false // it was opened so, which says nothing of the volume
				a.infoFacts(&r.Info)
				a.facts([][2]string{{"queue depth", fmt.Sprint(r.QueueDepth)}})
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVar(&paths, "path", nil, "ask over this path, SRC,DST or DST")
	cmd.Flags().StringVar(&session, "session", "", "name of the session (default made of both nodes' names)")
	return cmd
}
