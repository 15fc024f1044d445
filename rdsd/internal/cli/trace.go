package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/internal/plain"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/journey"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// traceMost bounds the datagrams of one trace with --count 0.
const traceMost = 10000

// traceOptions is what was asked for.
type traceOptions struct {
	to, source, of, peer string
	port                 uint16
	every                uint64
	count                int
	during               time.Duration
	and                  string
	otlp                 string
}

func (a *app) traceCmd() *cobra.Command {
	var o traceOptions
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "follow single datagrams from stage to stage, at both nodes",
		Long: `Follow the next datagrams that pass, and show for each when it came to each stage:
posted (the daemon found it), accepted, left (given to the link), received, placed
where its reader finds it, read, and acknowledged; or how it ended instead. Without
--to, --from, --of, --peer and --port any datagram is followed.

A daemon knows the stages of its own node. --and names the daemon of the other node
as --socket names this one's; a socket of another machine can be had through ssh:

  ssh -nNT -L ./other.sock:/run/rdsd/rdsd.sock root@10.0.0.2

The columns after POSTED say how long each stage took: RECEIVED since LEFT, by the
clocks of two nodes, whose difference is estimated and shown; ACKED since LEFT too.
--json has the times as each node said them.

With --every N only messages whose sequence is a multiple of N are followed, which
both daemons choose alike. Of a train, which is many small datagrams in one message,
one is followed: "3 of 20". Payload is never shown. It is for administrators: root,
the daemon's user, or one of api.admin_uids.`,
		Example: `  rdsd trace --to 10.0.0.2:4000 --count 10
  rdsd trace --of :4000 --every 1000 --for 10s --json
  rdsd trace --peer 10.0.0.2 --and ./other.sock
  rdsd trace --to 10.0.0.2:4000 --otlp http://127.0.0.1:4318/v1/traces`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.filter()
			if err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return err
			}
			return a.trace(cmd.Context(), &o, f)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "only datagrams to this ADDRESS:PORT, ADDRESS or :PORT")
	f.StringVar(&o.source, "from", "", "only datagrams from this one")
	f.StringVar(&o.of, "of", "", "only datagrams that this socket sends or receives")
	f.StringVar(&o.peer, "peer", "", "only datagrams to or from the node with this address")
	f.Uint16Var(&o.port, "port", 0, "only datagrams to or from this port, of any node")
	f.Uint64Var(&o.every, "every", 1, "one message of so many")
	f.IntVarP(&o.count, "count", "n", 10, fmt.Sprintf("stop after so many datagrams; 0: when the time is over (%d at most)", traceMost))
	f.DurationVar(&o.during, "for", 10*time.Second, "stop after this time, with what there is then; 0: never")
	f.StringVar(&o.and, "and", "", "the socket of the other node's daemon, to have its stages too")
	f.StringVar(&o.otlp, "otlp", "", "write spans of OpenTelemetry (OTLP, JSON) to this file, or to a collector at http://HOST:4318/v1/traces")
	return aList(cmd)
}

// check refuses numbers that make no sense.
func (o *traceOptions) check() error {
	switch {
	case o.every == 0:
		return usagef("--every 0: one message of how many? 1 is every one")
	case o.count < 0 || o.count > traceMost:
		return usagef("--count %d: want 1 to %d, or 0 for as many as pass in the time of --for", o.count, traceMost)
	case o.during < 0:
		return usagef("--for %v: want a time to watch, or 0 for no end", o.during)
	case o.count == 0 && o.during == 0:
		return usagef("--count 0 and --for 0 would never end: give one of them")
	}
	if u, err := url.Parse(o.otlp); strings.Contains(o.otlp, "://") && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return usagef("--otlp %q: want a file, or a collector's address such as http://127.0.0.1:4318/v1/traces", o.otlp)
	}
	return nil
}

// filter is what the flags choose.
func (o *traceOptions) filter() (f rdsd.TraceFilter, err error) {
	f.Every = o.every
	if f.Source, err = tracedEndpoint("--from", o.source); err != nil {
		return f, err
	}
	if f.Destination, err = tracedEndpoint("--to", o.to); err != nil {
		return f, err
	}
	of, err := tracedEndpoint("--of", o.of)
	if err != nil {
		return f, err
	}
	if o.of != "" {
		f.Either = append(f.Either, of)
	}
	if o.peer != "" {
		addr, err := netip.ParseAddr(o.peer)
		if err != nil || addr.Zone() != "" {
			return f, usagef("--peer %q is not the address of a node: write it as 10.0.0.2 or fd00::2; a socket is chosen with --of", o.peer)
		}
		f.Either = append(f.Either, netip.AddrPortFrom(addr.Unmap(), 0))
	}
	if o.port != 0 {
		f.Either = append(f.Either, netip.AddrPortFrom(netip.Addr{}, o.port))
	}
	return f, nil
}

// tracedEndpoint reads "10.0.0.2:4000", "10.0.0.2", ":4000" or "4000".
func tracedEndpoint(flag, s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, nil
	}
	ep, err := parseLocal(flag, s)
	if err == nil && !ep.Addr().IsValid() && ep.Port() == 0 {
		return ep, usagef("%s %q: port 0 is no port of a socket; give one from 2 to 65535", flag, s)
	}
	return ep, err
}

// told is what one of the daemons says.
type told struct {
	node int
	r    rdsd.TraceReport
	err  error
}

// trace watches, and shows what it saw.
func (a *app) trace(ctx context.Context, o *traceOptions, f rdsd.TraceFilter) error {
	targets := []string{dial.Target(a.socket)}
	if o.and != "" {
		targets = append(targets, o.and)
	}
	most := o.count
	if most == 0 {
		most = traceMost
	}
	l := journey.New(most, targets...)
	if err := a.gather(ctx, l, targets, o, f); err != nil {
		return err
	}
	l.Over()
	seen := traced{l, l.Offset(), l.Untold(a.kinds(targets))}
	var spans error
	if o.otlp != "" {
		spans = a.writeSpans(l, seen.offset, o.otlp)
	}
	// What was seen is worth showing also when the spans went nowhere.
	return cmp.Or(a.showTrace(seen), spans)
}

// traced is what was seen.
type traced struct {
	*journey.Log
	offset journey.Offset
	untold []journey.Untold
}

// kinds is what the daemons know of their peers. None is known of a daemon that does not
// say: a trace is shown without.
func (a *app) kinds(targets []string) map[netip.Addr]rdsd.PeerKind {
	// Not the command's: an interrupted trace is shown too.
	ctx, cancel := a.bounded(context.Background())
	defer cancel()
	kinds := map[netip.Addr]rdsd.PeerKind{}
	for _, target := range targets {
		c, err := a.dialAt(ctx, target)
		if err != nil {
			continue
		}
		peers, _ := c.Admin().Peers(ctx, rdsd.PeerFilter{})
		for _, p := range peers {
			kinds[p.Remote] = p.Kind
		}
		c.Close()
	}
	return kinds
}

// gather fills l until it has enough, the time is over, or somebody interrupts.
func (a *app) gather(ctx context.Context, l *journey.Log, targets []string, o *traceOptions, f rdsd.TraceFilter) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	reports := make(chan told, 16)
	// The other node's first: whatever leaves here is then told of there as well.
	for i := len(targets) - 1; i >= 0; i-- {
		c, err := a.dialAt(ctx, targets[i])
		if err != nil {
			return err
		}
		defer c.Close()
		seq := opened(watch, a, func(ctx context.Context) iter.Seq2[rdsd.TraceReport, error] { return c.Admin().Trace(ctx, f) })
		go func() { // ends with watch
			for r, err := range seq {
				select {
				case reports <- told{i, r, err}:
				case <-watch.Done():
					return
				}
			}
		}()
	}
	var over <-chan time.Time
	if o.during > 0 {
		timer := time.NewTimer(o.during)
		defer timer.Stop()
		over = timer.C
	}
	for !l.Enough() {
		select {
		case <-over:
			return nil
		case <-ctx.Done(): // what there is by now is worth showing
			return nil
		case t := <-reports:
			if t.err != nil {
				if ctx.Err() != nil {
					return nil
				}
				if len(targets) > 1 {
					return fmt.Errorf("the daemon at %s: %w", targets[t.node], dial.Cause(t.err))
				}
				return dial.Cause(t.err)
			}
			l.Add(t.node, t.r)
		}
	}
	return nil
}

// writeSpans writes spans to a file or a collector.
func (a *app) writeSpans(l *journey.Log, o journey.Offset, to string) error {
	b, err := l.OTLP(o)
	if err != nil {
		return err
	}
	if !strings.Contains(to, "://") {
		return os.WriteFile(to, append(b, '\n'), 0o600)
	}
	// Not the command's: an interrupted trace has spans too.
	ctx, cancel := a.bounded(context.Background())
	defer cancel()
	if err := journey.Post(ctx, to, b); err != nil {
		return fmt.Errorf("--otlp %s: %w", to, err)
	}
	return nil
}

// traceDoc is the JSON of a trace.
type traceDoc struct {
	Nodes     []journey.Node     `json:"nodes"`
	Clock     journey.Offset     `json:"clock"` // of the second node, against the first
	Summary   []journey.Spent    `json:"summary"`
	Dropped   uint64             `json:"dropped"` // events that are missing
	Untold    []journey.Untold   `json:"untold"`  // nodes whose stages are missing
	Datagrams []*journey.Journey `json:"datagrams"`
}

func (a *app) showTrace(seen traced) error {
	l, o := seen.Log, seen.offset
	list := l.Journeys()
	if a.form == formTSV {
		return writeTSV(a.out, list)
	}
	sums := l.Sum(o)
	if a.json {
		if list == nil {
			list = []*journey.Journey{}
		}
		return writeJSON(a.out, traceDoc{l.Nodes, o, sums, l.Dropped(), seen.untold, list})
	}
	if len(list) == 0 {
		fmt.Fprintln(a.out, "no such datagram passed")
		return nil
	}
	a.traceTable(list, sums, o)
	a.traceNotes(seen)
	return nil
}

// traceRow is a line of the table: a datagram, or a sum of all.
type traceRow struct {
	j    *journey.Journey
	name string
	cell func(stage int) string
}

func (a *app) traceTable(list []*journey.Journey, sums []journey.Spent, o journey.Offset) {
	var rows []traceRow
	for _, j := range list {
		rows = append(rows, traceRow{j: j, cell: func(i int) string {
			d, ok := journey.Stages[i].Of(j, o)
			if !ok {
				return "-"
			}
			return tookText(d)
		}})
	}
	sum := func(name string, of func(journey.Spent) time.Duration) {
		rows = append(rows, traceRow{j: &journey.Journey{}, name: name, cell: func(i int) string {
			if sums[i].Count == 0 {
				return "-"
			}
			return tookText(of(sums[i]))
		}})
	}
	sum("p50", func(s journey.Spent) time.Duration { return s.P50 })
	sum("max", func(s journey.Spent) time.Duration { return s.Max })
	datagram := func(f func(j *journey.Journey) string) func(traceRow) any {
		return func(r traceRow) any {
			if r.name != "" {
				return ""
			}
			return f(r.j)
		}
	}
	cols := []column[traceRow]{
		{"lane/seq", func(r traceRow) any {
			if r.name != "" {
				return r.name
			}
			return sequenceText(r.j)
		}},
		{"from", datagram(func(j *journey.Journey) string { return endpointText(j.Source) })},
		{"to", datagram(func(j *journey.Journey) string { return endpointText(j.Destination) })},
		{"bytes", datagram(func(j *journey.Journey) string { return strconv.FormatUint(j.Bytes, 10) })},
		{"posted", datagram(func(j *journey.Journey) string { return clockText(j.Posted) })},
	}
	for i, s := range journey.Stages {
		cols = append(cols, column[traceRow]{s.Name, func(r traceRow) any { return r.cell(i) }})
	}
	cols = append(cols, column[traceRow]{"outcome", datagram(outcomeOf)})
	writeTable(a.out, rows, cols)
}

func sequenceText(j *journey.Journey) string {
	s := fmt.Sprintf("%d/%d", j.Lane, j.Seq)
	switch {
	case j.Here:
		s = fmt.Sprintf("here/%d", j.Seq)
	case j.Seq == 0:
		s = "-"
	}
	if j.Datagrams > 1 {
		s += fmt.Sprintf(" (%d of %d)", j.Member+1, j.Datagrams)
	}
	return s
}

// outcomeOf says how it ended, and what else was odd.
func outcomeOf(j *journey.Journey) string {
	parts := []string{j.Outcome}
	if j.Outcome == "" {
		parts[0] = "not yet"
		if j.Complete {
			parts[0] = "-" // its sender's daemon was not asked
		}
	}
	if j.Reason != "" {
		parts[0] += ": " + j.Reason
	}
	if j.SentAgain > 0 {
		parts = append(parts, fmt.Sprintf("sent %d times more", j.SentAgain))
	}
	if j.Dropped {
		parts = append(parts, "its reader went away")
	} else if j.Outcome == "delivered" && !j.Complete {
		parts = append(parts, "not read yet")
	}
	return strings.Join(parts, ", ")
}

// tookText shows how long a stage took; not longer than nothing is exactly that.
func tookText(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	if d < 0 {
		return "-" + plain.Duration(-d)
	}
	return plain.Duration(d)
}

func clockText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("15:04:05.000000")
}

// traceNotes says what a reader of the table has to know: whose clocks, and what is missing.
func (a *app) traceNotes(seen traced) {
	l, o := seen.Log, seen.offset
	if len(l.Nodes) > 1 {
		fmt.Fprintln(a.err, clockNote(l.Nodes[1].Name, o))
	}
	if n := l.Negative(o); n > 0 {
		why := "the clocks drift, and no one difference fits"
		if o.Known == "same" {
			why = "the machine's clock was set when the traces began"
		}
		fmt.Fprintf(a.err, "%s end before they begin, and are shown with a minus: %s\n", plural(uint64(n), "stage"), why)
	}
	for _, u := range seen.untold {
		fmt.Fprintln(a.err, untoldNote(u))
	}
	if n := l.Dropped(); n > 0 {
		fmt.Fprintf(a.err, "%d events found no room and are missing; --every follows fewer datagrams\n", n)
	}
}

// clockNote says how the clock of the second node is understood.
func clockNote(node string, o journey.Offset) string {
	switch o.Known {
	case "same":
		return "both daemons have the same clock"
	case "bounded":
		return fmt.Sprintf("the clock of %s is %s ahead, within %s: estimated from these datagrams and their acknowledgements; RECEIVED is by that estimate", node, tookText(o.Ahead), tookText(o.Error))
	case "one-sided":
		return fmt.Sprintf("the clock of %s is about %s ahead, as if the fastest way had taken no time: nothing says how much it did", node, tookText(o.Ahead))
	case "drifting":
		return fmt.Sprintf("the clock of %s is about %s ahead, and drifted by %s or more while this was traced: RECEIVED may be off by %s, and by less in a shorter trace (--for)", node, tookText(o.Ahead), tookText(2*o.Error), tookText(o.Error))
	}
	return "nothing says how far the clocks of the two nodes differ: RECEIVED is as if they did not"
}

// untoldNote says why the stages of a node are missing, and what would show them.
func untoldNote(u journey.Untold) string {
	missing, acked := "RECEIVED, PLACED and READ of "+plural(uint64(u.Datagrams), "datagram")+" to it are missing", "; ACKED is when its TCP had them"
	if u.Side == "sender" {
		missing, acked = "of "+plural(uint64(u.Datagrams), "datagram")+" from it only PLACED and READ are known", ""
	}
	switch u.Kind {
	case rdsd.PeerKernel, rdsd.PeerKernelLegacy:
		return fmt.Sprintf("%s is a Linux kernel, which has no daemon that could tell: %s%s", u.Address, missing, acked)
	case rdsd.PeerRDSD:
		return fmt.Sprintf("the daemon of %s was not asked (--and SOCKET): %s", u.Address, missing)
	}
	return fmt.Sprintf("nobody was asked at %s, of which it is not known whether it has a daemon: %s", u.Address, missing)
}
