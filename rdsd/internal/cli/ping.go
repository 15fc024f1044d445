package cli

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type pingOptions struct {
	count    uint64
	interval time.Duration
	local    string
	quiet    bool
}

func (a *app) pingCmd() *cobra.Command {
	var o pingOptions
	cmd := &cobra.Command{
		Use:   "ping NODE",
		Short: "ask a node's RDS for a sign of life and time it",
		Long: `Send RDS pings (datagrams to port 0) to NODE, an address or a host name, and show
the round trips. Both rdsd and the kernel answer them; no application is needed
there. It goes on until --count or Ctrl-C, and ends with a summary. --timeout is
the longest wait for one reply. The exit code is 0 when any reply came; when
none did, 4 if the node was silent and 1 if it cannot or may not be reached; 130 if
it was ended during the first one.`,
		ValidArgsFunction: a.completeFirst(listPeerWords),
		Args:              needArgs("NODE", "the address of a node, such as 10.0.0.2 or fd00::2"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ping(cmd.Context(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.Uint64VarP(&o.count, "count", "c", 0, "end after so many pings; 0 means never")
	f.DurationVarP(&o.interval, "interval", "i", time.Second, "time between pings")
	f.StringVarP(&o.local, "local", "I", "", "local address to ping from")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print the summary only")
	return cmd
}

// pingLine is one ping in --json.
type pingLine struct {
	Seq   uint64     `json:"seq"`
	Local netip.Addr `json:"local"`
	RTT   duration   `json:"rtt_ns"`
	Error string     `json:"error,omitempty"`
}

// pingSummary is the last line of --json.
type pingSummary struct {
	Node     netip.Addr `json:"node"`
	Sent     uint64     `json:"sent"`
	Received uint64     `json:"received"`
	Min      duration   `json:"min_ns"`
	P50      duration   `json:"p50_ns"`
	P90      duration   `json:"p90_ns"`
	P99      duration   `json:"p99_ns"`
	Max      duration   `json:"max_ns"`
	Mean     duration   `json:"mean_ns"`
}

func (a *app) ping(ctx context.Context, node string, o pingOptions) error {
	remote, err := resolveHost(ctx, "NODE", node)
	if err != nil {
		return err
	}
	spec := rdsd.PingSpec{Remote: remote, Timeout: a.timeout}
	if spec.Timeout == 0 { // for ever; 0 of the API is a default
		spec.Timeout = math.MaxInt64
	}
	if o.local != "" {
		if spec.Local, err = resolveHost(ctx, "--local", o.local); err != nil {
			return err
		}
		if spec.Local.Is4() != remote.Is4() {
			return usagef("--local %s and %s: IPv4 and IPv6 do not mix", spec.Local, remote)
		}
	}
	return a.adminStream(ctx, func(ctx context.Context, c *rdsd.Admin) error {
		if !a.json && !o.quiet {
			fmt.Fprintf(a.out, "RDS ping of %s\n", remote)
		}
		return a.pingLoop(ctx, c, spec, o)
	})
}

func (a *app) pingLoop(ctx context.Context, c *rdsd.Admin, spec rdsd.PingSpec, o pingOptions) error {
	sum := pingSummary{Node: spec.Remote}
	h := hdrhistogram.New(1, int64(10*time.Minute), 3)
	tick := time.NewTicker(max(o.interval, time.Nanosecond))
	defer tick.Stop()
	var last error
	for (o.count == 0 || sum.Sent < o.count) && !a.lost() {
		if sum.Sent > 0 && o.interval > 0 {
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		if ctx.Err() != nil {
			break
		}
		sum.Sent++
		pong, err := a.pingOnce(ctx, c, spec)
		if ctx.Err() != nil {
			sum.Sent-- // interrupted while it was out: it says nothing
			break
		}
		line := pingLine{Seq: sum.Sent}
		if err != nil {
			if code := exitOf(err); code == exitUsage || code == exitDenied || code == exitUnreachable {
				// The next would fail the same way.
				if sum.Received == 0 {
					return err
				}
				sum.Sent-- // it says nothing of the node
				say(a.err, "rdsd: %s\n", explain(err))
				break
			}
			last, line.Error = err, explain(err)
		} else {
			sum.Received++
			line.Local, line.RTT = pong.Local, duration(pong.RTT)
			h.RecordValue(max(int64(line.RTT), 1))
		}
		a.printPing(line, spec.Remote, o.quiet)
	}
	sum.Min, sum.P50, sum.P90, sum.P99, sum.Max, sum.Mean = duration(h.Min()), duration(h.ValueAtQuantile(50)),
		duration(h.ValueAtQuantile(90)), duration(h.ValueAtQuantile(99)), duration(h.Max()), duration(h.Mean())
	a.printPingSummary(sum)
	switch {
	case sum.Sent == 0:
		return ctx.Err() // interrupted during the first one
	case sum.Received == 0:
		return withCode(exitOf(last), fmt.Errorf("no reply from %s: %s", spec.Remote, explain(last)))
	}
	return nil
}

func (a *app) pingOnce(ctx context.Context, c *rdsd.Admin, spec rdsd.PingSpec) (*rdsd.Pong, error) {
	if a.timeout > 0 { // a little longer than the daemon's own limit, so that it is the one to say so
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout+time.Second)
		defer cancel()
	}
	pong, err := c.Ping(ctx, spec)
	return pong, dial.Cause(err)
}

func (a *app) printPing(l pingLine, remote netip.Addr, quiet bool) {
	switch {
	case quiet:
	case a.json:
		writeNDJSON(a.out, l)
	case l.Error != "":
		say(a.out, "no reply: seq=%d: %s\n", l.Seq, l.Error)
	default:
		fmt.Fprintf(a.out, "reply from %s to %s: seq=%d time=%s\n", remote, l.Local, l.Seq, l.RTT)
	}
}

func (a *app) printPingSummary(s pingSummary) {
	if a.json {
		writeNDJSON(a.out, s)
		return
	}
	lost := 0.0
	if s.Sent > 0 {
		lost = 100 * float64(s.Sent-s.Received) / float64(s.Sent)
	}
	fmt.Fprintf(a.out, "--- %s: %d sent, %d received, %.0f%% lost\n", s.Node, s.Sent, s.Received, lost)
	if s.Received > 0 {
		fmt.Fprintf(a.out, "round trip min %s, p50 %s, p90 %s, p99 %s, max %s, mean %s\n", s.Min, s.P50, s.P90, s.P99, s.Max, s.Mean)
	}
}
