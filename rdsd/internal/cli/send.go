package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// maxDatagramBytes is the largest datagram RDS carries.
const maxDatagramBytes = 1 << 20

type sendOptions struct {
	from     string
	file     string
	lines    bool
	size     int
	count    uint64
	rate     float64
	wait     bool
	try      bool
	outcomes bool
}

func (a *app) sendCmd() *cobra.Command {
	var o sendOptions
	cmd := &cobra.Command{
		Use:   "send ADDR:PORT [PAYLOAD...]",
		Short: "send datagrams to a port of a node",
		Long: `Send datagrams to ADDR:PORT. Each PAYLOAD is one datagram; without any, the whole
of standard input is one (--lines: each line is, and is sent when no further one is
there). --file and --size give the
payload instead. --count repeats it all.

The command ends when every datagram has its outcome: delivered, cancelled, failed
or unknown. It prints how many of each there were, and exits with 7 unless all were
delivered; --outcomes also shows each one that was not. However the command ends,
the four numbers add up to what was accepted.

--timeout bounds the whole command: what is undecided then is cancelled. Left at its
default it bounds each wait: for room, and for the next outcome. After Ctrl-C what
is under way has 0.3 s. By default the command waits for room while the destination
is congested or the send buffer is full (--wait); with --try it fails at once (exit
code 5).`,
		Example: `  rdsd send 10.0.0.2:4000 hello
  rdsd send node7:4000 --file image.bin
  rdsd send '[fd00::2]:4000' --size 1024 --count 1000 --rate 100 --outcomes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the destination is missing; write it as 10.0.0.2:4000 or [fd00::2]:4000")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args[1:], cmd.Flags().Changed("size")); err != nil {
				return err
			}
			ctx, cancel := a.whole(cmd)
			defer cancel()
			dsts, err := parseDestinations(ctx, "destination", args[0])
			if err != nil {
				return err
			}
			return a.send(ctx, dsts, args[1:], o, cmd.Flags().Changed("size"))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "source ADDR[:PORT] (default an address of the daemon, any port)")
	f.StringVar(&o.file, "file", "", "send the contents of this file as one datagram; - is standard input")
	f.BoolVar(&o.lines, "lines", false, "standard input or --file: one datagram a line")
	f.IntVar(&o.size, "size", 0, "send generated datagrams of so many bytes")
	f.Uint64Var(&o.count, "count", 1, "send everything so many times")
	f.Float64Var(&o.rate, "rate", 0, "datagrams a second at most; 0 is as fast as possible")
	f.BoolVar(&o.wait, "wait", false, "wait for room (default)")
	f.BoolVar(&o.try, "try", false, "do not wait for room: fail at once")
	f.BoolVar(&o.outcomes, "outcomes", false, "show each datagram that was not delivered, with the reason")
	return cmd
}

func (o sendOptions) check(payloads []string, sized bool) error {
	switch {
	case o.wait && o.try:
		return usagef("--wait waits for room and --try does not: choose one")
	case len(payloads) > 0 && (o.file != "" || sized), o.file != "" && sized:
		return usagef("give the payload either as arguments, or with --file, or with --size")
	case o.size < 0 || o.size > maxDatagramBytes:
		return usagef("--size %d: a datagram has 0 to %d bytes (1 MiB)", o.size, maxDatagramBytes)
	case o.count == 0:
		return usagef("--count 0 would send nothing; leave it out or give 1 or more")
	case !(o.rate >= 0): // NaN too
		return usagef("--rate %v: it must be a number of datagrams a second, or 0 for no limit", o.rate)
	}
	return nil
}

// payloads yields what is to be sent once, in order; more: further ones are there already.
func (a *app) payloads(ctx context.Context, args []string, o sendOptions, sized bool, yield func(p []byte, more bool) error) error {
	if sized {
		b := make([]byte, o.size)
		for i := range b {
			b[i] = "0123456789abcdef"[i%16]
		}
		return yield(b, true)
	}
	for _, p := range args {
		if err := yield([]byte(p), true); err != nil {
			return err
		}
	}
	if len(args) > 0 {
		return nil
	}
	return a.readInput(ctx, o, yield)
}

// sendReport is what --json prints at the end. The last four add up to Datagrams.
type sendReport struct {
	From      netip.AddrPort `json:"from"`
	To        netip.AddrPort `json:"to"`
	Datagrams uint64         `json:"datagrams"` // accepted
	Bytes     bytesCount     `json:"bytes"`
	Elapsed   duration       `json:"elapsed_ns"`
	Delivered uint64         `json:"delivered"`
	Cancelled uint64         `json:"cancelled"`
	Failed    uint64         `json:"failed"`
	Unknown   uint64         `json:"unknown"`
}

func (a *app) send(ctx context.Context, dsts []netip.AddrPort, args []string, o sendOptions, sized bool) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	dst, err := a.chooseDestination(ctx, c, dsts)
	if err != nil {
		return err
	}
	sock, err := a.bindFrom(ctx, c, "--from", o.from, dst.Addr())
	if err != nil {
		return err
	}
	defer sock.Close()
	rep := sendReport{From: sock.LocalAddr(), To: dst}
	collect := a.collectOutcomes(ctx, sock, o.outcomes)
	defer collect.stop()
	start := time.Now()
	err = a.sendAll(ctx, &outbox{a: a, sock: sock, dst: dst, try: o.try, alone: o.try || o.rate > 0, rep: &rep}, args, o, sized)
	// What was accepted is seen through even when a later one was refused:
	// closing the socket would cancel it.
	late := a.seeThrough(ctx, sock, collect, &rep)
	rep.Elapsed = duration(time.Since(start))
	if rep.Datagrams > 0 || err == nil || a.json {
		a.printSent(rep)
	}
	switch {
	case err != nil:
		return err
	case late != nil:
		return late
	case rep.Delivered != rep.Datagrams:
		return withCode(exitIncomplete, fmt.Errorf("%d of %s were delivered: %s", rep.Delivered, plural(rep.Datagrams, "datagram"), collect.why(dst)))
	}
	return nil
}

// sendAll hands every datagram to the outbox, as often and as fast as asked for.
func (a *app) sendAll(ctx context.Context, out *outbox, args []string, o sendOptions, sized bool) error {
	limit := rate.NewLimiter(rate.Inf, 1)
	if o.rate > 0 {
		limit = rate.NewLimiter(rate.Limit(o.rate), 1)
	}
	one := func(p []byte) error {
		if err := limit.Wait(ctx); err != nil {
			out.left++
			if ctx.Err() == nil { // the next one would be due after the deadline
				err = context.DeadlineExceeded
			}
			return err
		}
		return out.add(ctx, p)
	}
	var kept [][]byte // what --count repeats: input can be read only once
	err := a.payloads(ctx, args, o, sized, func(p []byte, more bool) error {
		if o.count > 1 {
			kept = append(kept, p)
		}
		err := one(p)
		if err == nil && !more {
			err = out.flush(ctx) // nobody knows when the next one comes
		}
		return err
	})
	for n := uint64(1); n < o.count && err == nil; n++ {
		for _, p := range kept {
			if err = one(p); err != nil {
				break
			}
		}
	}
	if err == nil {
		err = out.flush(ctx)
	}
	if n := out.left + uint64(len(out.batch)); n > 0 && len(args) == 0 && !sized {
		fmt.Fprintf(a.err, "rdsd: %s read and not sent\n", wereText(n, "datagram"))
	}
	return err
}

func wereText(n uint64, what string) string {
	if n == 1 {
		return plural(n, what) + " was"
	}
	return plural(n, what) + " were"
}

// goodbye is how long the end of a command waits for the daemon's last words.
const goodbye = 300 * time.Millisecond

// seeThrough waits until everything accepted has its outcome. When ctx ends first,
// or nothing is decided for --timeout, what has not left is cancelled, and what is
// not decided even then is unknown to us. It fills in the counts of rep.
func (a *app) seeThrough(ctx context.Context, sock *rdsd.Socket, collect *outcomes, rep *sendReport) error {
	idle := a.timeout
	if _, bounded := ctx.Deadline(); bounded {
		idle = 0 // the deadline is the bound
	}
	decided := collect.wait(ctx, rep.Datagrams, idle)
	if !decided && errors.Is(ctx.Err(), context.Canceled) {
		// Ctrl-C says that no more is to be sent. What is on its way to a peer that
		// answers is decided in a moment, and nobody gains when it is cancelled.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		decided = collect.wait(end, rep.Datagrams, 0)
		cancel()
	}
	if !decided {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		if _, err := sock.CancelSentTo(end, rep.To); err == nil {
			collect.wait(end, rep.Datagrams, 0)
		}
	}
	// An accepted batch whose answer we did not wait for may have had outcomes.
	rep.Datagrams = max(rep.Datagrams, collect.total())
	collect.rest(rep.Datagrams)
	rep.Delivered, rep.Cancelled, rep.Failed, rep.Unknown = collect.counts()
	switch {
	case decided:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case collect.over() != nil:
		return fmt.Errorf("the daemon went away before every datagram was decided: %w", dial.Cause(collect.over()))
	}
	return withCode(exitTimeout, fmt.Errorf("not every datagram was acknowledged within %v, and what had not left is cancelled (%s); rdsd peers shows the state of the connection, --timeout waits longer", a.timeout, collect.why(rep.To)))
}

// bindFrom binds the socket of a command that sends and wants the outcomes.
func (a *app) bindFrom(ctx context.Context, c *rdsd.Client, flag, from string, dst netip.Addr) (*rdsd.Socket, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	var local netip.AddrPort
	if from != "" {
		var err error
		if local, err = parseLocal(flag, from); err != nil {
			return nil, err
		}
	}
	if local.Addr().IsValid() && dst.IsValid() && local.Addr().Is4() != dst.Is4() {
		return nil, usagef("%s %s and destination %s: IPv4 and IPv6 do not mix", flag, local.Addr(), dst)
	}
	local, err := chooseLocal(ctx, c, local, dst)
	if err != nil {
		return nil, err
	}
	s, err := c.Bind(ctx, local, rdsd.WithLabel("rdsd"), rdsd.WithReconnect(false), rdsd.WithOutcomes())
	if err != nil {
		return nil, fmt.Errorf("cannot bind %s: %w", local, dial.Cause(err))
	}
	return s, nil
}

func (a *app) printSent(r sendReport) {
	if a.json {
		writeJSON(a.out, r)
		return
	}
	fmt.Fprintf(a.out, "%s, %s, from %s to %s in %s: %d delivered, %d cancelled, %d failed, %d unknown\n", plural(r.Datagrams, "datagram"), r.Bytes,
		r.From, r.To, r.Elapsed, r.Delivered, r.Cancelled, r.Failed, r.Unknown)
}
