package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdsd/internal/load"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type stressOptions struct {
	to, from, listen string
	peerSocket       string
	cfg              load.Config
}

func (a *app) stressCmd() *cobra.Command {
	var o stressOptions
	mode := string(load.RequestAck)
	cmd := &cobra.Command{
		Use:   "stress --to ADDR:PORT | --listen ADDR:PORT",
		Short: "generate load and measure latency",
		Long: `Generate load towards an 'rdsd stress --listen' on another node, and measure.

request-ack keeps --depth requests of each of --tasks sockets outstanding and
times the round trips; one-way sends without answers and times each datagram
from sending to the outcome "delivered". --verify checks contents and order at
both ends. With --rate the latency counts from the moment a datagram was due.

With both --to and --peer-socket the listening end runs in this process, on the
daemon of that socket. --json prints one object a second and one at the end
("final": true). The exit code is 7 when a datagram was damaged, refused or
missing.

For the protocol of the kernel's rds-stress see 'rdsd rds-stress'.`,
		Example: `  rdsd stress --listen 10.0.0.2:4000
  rdsd stress --to 10.0.0.2:4000 --tasks 4 --depth 16 --size 1024 --duration 10s --verify`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.cfg.Mode = load.Mode(mode)
			if err := o.cfg.Validate(); err != nil {
				return usagef("%w", err)
			}
			switch {
			case o.to == "" && o.listen == "":
				return usagef("give --to ADDR:PORT (send to a listening rdsd stress) or --listen ADDR:PORT (be one)")
			case o.to != "" && o.listen != "":
				return usagef("--to and --listen are the two ends of a run; for both in one process use --to with --peer-socket")
			case o.listen != "":
				return a.stressListen(cmd.Context(), o)
			}
			return a.stressSend(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "send to the rdsd stress listening at ADDR:PORT")
	f.StringVar(&o.listen, "listen", "", "receive on ADDR:PORT, check and answer")
	f.StringVar(&o.from, "from", "", "local address to send from")
	f.StringVar(&o.peerSocket, "peer-socket", "", "with --to: also listen there, through the daemon of this socket")
	f.StringVar(&mode, "mode", mode, "request-ack or one-way")
	f.IntVar(&o.cfg.Size, "size", 1024, "bytes of a datagram")
	f.IntVar(&o.cfg.AckSize, "ack-size", 64, "bytes of an answer (given at the listening end)")
	f.IntVar(&o.cfg.Tasks, "tasks", 1, "sockets that send")
	f.IntVar(&o.cfg.Depth, "depth", 1, "datagrams each task keeps under way")
	f.Float64Var(&o.cfg.Rate, "rate", 0, "datagrams a second of all tasks; 0 is as fast as possible")
	f.BoolVar(&o.cfg.Verify, "verify", false, "checksum the contents")
	f.DurationVar(&o.cfg.Duration, "duration", 0, "how long; 0 means until Ctrl-C")
	return cmd
}

func (a *app) stressListen(ctx context.Context, o stressOptions) error {
	local, err := parseLocal("--listen", o.listen)
	if err != nil {
		return err
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	sock, err := a.bindRecv(ctx, c, local)
	if err != nil {
		return err
	}
	defer sock.Close()
	if o.cfg.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.cfg.Duration)
		defer cancel()
	}
	fmt.Fprintf(a.err, "listening on %s\n", sock.LocalAddr())
	ctx, end := context.WithCancel(ctx)
	defer end()
	var last load.Responded
	err = load.Respond(ctx, sock, o.cfg.AckSize, time.Second, func(r load.Responded) {
		last = r
		if a.json {
			writeNDJSON(a.out, r)
		} else {
			fmt.Fprintf(a.out, "%6.1fs  received %d (%s), answered %d, damaged %d\n", r.Elapsed, r.Received, bytesCount(r.Bytes), r.Answered, r.Damaged)
		}
		if a.lost() {
			end()
		}
	})
	if err == nil && last.Damaged > 0 && !a.lost() {
		err = withCode(exitIncomplete, fmt.Errorf("%s damaged or out of order", plural(last.Damaged, "datagram")))
	}
	return err
}

func (a *app) stressSend(ctx context.Context, o stressOptions) error {
	var err error
	if o.cfg.To, err = parseDestination("--to", o.to); err != nil {
		return err
	}
	var from netip.AddrPort
	if o.from != "" {
		if from, err = parseLocal("--from", o.from); err != nil {
			return err
		}
	}
	if o.peerSocket != "" {
		stop, err := a.stressPeer(ctx, o)
		if err != nil {
			return err
		}
		defer stop()
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	bctx, cancel := a.bounded(ctx)
	from, err = chooseLocal(bctx, c, from, o.cfg.To.Addr())
	cancel()
	if err != nil {
		return err
	}
	if from.Addr().Is4() != o.cfg.To.Addr().Is4() {
		return usagef("--from %s and --to %s: IPv4 and IPv6 do not mix", from.Addr(), o.cfg.To)
	}
	o.cfg.From = from.Addr()
	if !a.json {
		fmt.Fprintf(a.out, "%s from %s to %s: %d tasks, depth %d, %d bytes\n", o.cfg.Mode, o.cfg.From, o.cfg.To, o.cfg.Tasks, o.cfg.Depth, o.cfg.Size)
		fmt.Fprintf(a.out, "%7s %10s %10s %9s %9s %9s %9s %8s %8s\n", "time", "done/s", "MiB/s", "p50", "p99", "p99.9", "max", "failed", "damaged")
	}
	running, end := context.WithCancel(ctx)
	defer end()
	total, err := load.Run(running, c, o.cfg, func(r load.Report) {
		if a.printReport(r); a.lost() {
			end()
		}
	})
	a.printReport(total)
	switch {
	case err != nil:
		return err
	case total.Damaged+total.Failed+total.Missing > 0 && !a.lost(): // which has ended it, with what was on its way
		return withCode(exitIncomplete, fmt.Errorf("%d damaged, %d failed, %d missing of %d sent%s", total.Damaged, total.Failed, total.Missing, total.Sent, a.whyNotDone(ctx, c, o.cfg, total)))
	}
	return nil
}

// whyNotDone says why datagrams of a run failed, or have no answer, and what would be right; "" if nobody knows.
func (a *app) whyNotDone(ctx context.Context, c *rdsd.Client, cfg load.Config, total load.Report) string {
	reasons := total.Reasons
	if cfg.Mode == load.RequestAck && total.Missing > 0 {
		// Also after Ctrl-C.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(a.timeout, 5*time.Second))
		defer cancel()
		switch o, err := load.Probe(ctx, c, cfg); {
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Sprintf("; %s acknowledges nothing now: rdsd peers --remote %s says why", cfg.To.Addr(), cfg.To.Addr())
		case err != nil || o.Kind == rdsd.Delivered:
			return ""
		default:
			reasons = map[string]uint64{o.Reason: total.Missing}
		}
	}
	var l []string
	for _, r := range slices.Sorted(maps.Keys(reasons)) {
		switch {
		case r == noSuchPort:
			l = append(l, fmt.Sprintf("nobody has bound %s; there has to be an 'rdsd stress --listen %s' at its node", cfg.To, cfg.To))
		case r != "":
			l = append(l, r)
		}
	}
	if len(l) == 0 {
		return ""
	}
	return ": " + strings.Join(l, ", ")
}

func (a *app) printReport(r load.Report) {
	if a.json {
		writeNDJSON(a.out, r)
		return
	}
	fmt.Fprintf(a.out, "%6.1fs %10.0f %10.2f %9s %9s %9s %9s %8d %8d\n", r.Elapsed, r.PerSecond, r.MiBps,
		duration(r.P50), duration(r.P99), duration(r.P999), duration(r.Max), r.Failed, r.Damaged)
	if r.Final {
		fmt.Fprintf(a.out, "total: %d sent, %d done, %d failed, %d damaged, %d missing; mean latency %s\n",
			r.Sent, r.Done, r.Failed, r.Damaged, r.Missing, duration(r.Mean))
	}
}

// stressPeer runs the listening end on another daemon; the function it returns
// ends it.
func (a *app) stressPeer(ctx context.Context, o stressOptions) (func(), error) {
	c, err := a.dialAt(ctx, o.peerSocket)
	if err != nil {
		return nil, err
	}
	bctx, bound := a.bounded(ctx)
	sock, err := c.Bind(bctx, o.cfg.To, rdsd.WithLabel("rdsd stress"))
	bound()
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot bind %s at --peer-socket: %w", o.cfg.To, dial.Cause(err))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- load.Respond(ctx, sock, o.cfg.AckSize, time.Second, func(load.Responded) {}) }()
	return func() {
		cancel()
		err := <-done
		if err := errors.Join(err, sock.Close(), c.Close()); err != nil {
			say(a.err, "rdsd: the listening end: %v\n", err)
		}
	}, nil
}
