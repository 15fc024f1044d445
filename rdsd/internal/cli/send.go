package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
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
of standard input is one (--lines: each line is). --file and --size give the
payload instead. --count repeats it all.

The command ends when every datagram is acknowledged by the peer, within
--timeout. By default it waits for room while the destination is congested or
the send buffer is full (--wait); with --try it fails at once (exit code 5).
--outcomes shows what became of each datagram, and exits with 7 unless all were
delivered.`,
		Example: `  rdsd send 10.0.0.2:4000 hello
  rdsd send 10.0.0.2:4000 --file image.bin
  rdsd send '[fd00::2]:4000' --size 1024 --count 1000 --rate 100 --outcomes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the destination is missing; write it as 10.0.0.2:4000 or [fd00::2]:4000")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dst, err := parseDestination("destination", args[0])
			if err != nil {
				return err
			}
			if err := o.check(args[1:], cmd.Flags().Changed("size")); err != nil {
				return err
			}
			return a.send(cmd.Context(), dst, args[1:], o, cmd.Flags().Changed("size"))
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
	f.BoolVar(&o.outcomes, "outcomes", false, "report what became of each datagram")
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
	case o.rate < 0:
		return usagef("--rate %v: it must be a number of datagrams a second, or 0 for no limit", o.rate)
	}
	return nil
}

// payloads yields what is to be sent once, in order.
func (a *app) payloads(args []string, o sendOptions, sized bool, yield func([]byte) error) error {
	if sized {
		b := make([]byte, o.size)
		for i := range b {
			b[i] = "0123456789abcdef"[i%16]
		}
		return yield(b)
	}
	for _, p := range args {
		if err := yield([]byte(p)); err != nil {
			return err
		}
	}
	if len(args) > 0 {
		return nil
	}
	in, name := a.in, "standard input"
	if o.file != "" && o.file != "-" {
		f, err := os.Open(o.file)
		if err != nil {
			return usagef("--file: %v", err)
		}
		defer f.Close()
		in, name = f, o.file
	}
	if o.lines {
		sc := bufio.NewScanner(in)
		sc.Buffer(nil, maxDatagramBytes+1)
		for sc.Scan() {
			if err := yield([]byte(sc.Text())); err != nil {
				return err
			}
		}
		if err := sc.Err(); err != nil {
			return usagef("%s: %v; a line is one datagram of at most %d bytes", name, err, maxDatagramBytes)
		}
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(in, maxDatagramBytes+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(b) > maxDatagramBytes {
		return usagef("%s has more than %d bytes (1 MiB), the most a datagram can have; use --lines or split it", name, maxDatagramBytes)
	}
	return yield(b)
}

// sendReport is what --json prints at the end.
type sendReport struct {
	From      netip.AddrPort `json:"from"`
	To        netip.AddrPort `json:"to"`
	Datagrams uint64         `json:"datagrams"`
	Bytes     bytesCount     `json:"bytes"`
	Elapsed   duration       `json:"elapsed_ns"`
	Delivered uint64         `json:"delivered,omitempty"`
	Cancelled uint64         `json:"cancelled,omitempty"`
	Failed    uint64         `json:"failed,omitempty"`
	Unknown   uint64         `json:"unknown,omitempty"`
}

func (a *app) send(ctx context.Context, dst netip.AddrPort, args []string, o sendOptions, sized bool) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	sock, err := a.bindFrom(ctx, c, "--from", o.from, dst.Addr(), o.outcomes)
	if err != nil {
		return err
	}
	defer sock.Close()
	rep := sendReport{From: sock.LocalAddr(), To: dst}
	var collect *outcomes
	if o.outcomes {
		collect = a.collectOutcomes(ctx, sock)
		defer collect.stop()
	}
	limit := rate.NewLimiter(rate.Inf, 1)
	if o.rate > 0 {
		limit = rate.NewLimiter(rate.Limit(o.rate), 1)
	}
	start := time.Now()
	out := outbox{a: a, sock: sock, dst: dst, try: o.try, alone: o.try || o.rate > 0, rep: &rep}
	one := func(p []byte) error {
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		return out.add(ctx, p)
	}
	var kept [][]byte // what --count repeats: input can be read only once
	err = a.payloads(args, o, sized, func(p []byte) error {
		if o.count > 1 {
			kept = append(kept, p)
		}
		return one(p)
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
	// What was accepted is seen through even when a later one was refused:
	// closing the socket would cancel it.
	ferr := a.settle(ctx, sock, rep.Datagrams)
	rep.Elapsed = duration(time.Since(start))
	if collect != nil && ferr == nil {
		collect.wait(rep.Datagrams, a.timeout)
		rep.Delivered, rep.Cancelled, rep.Failed, rep.Unknown = collect.counts()
	}
	if rep.Datagrams > 0 || err == nil || a.json {
		a.printSent(rep, o.outcomes)
	}
	switch {
	case err != nil:
		return err
	case ferr != nil:
		return ferr
	case o.outcomes && rep.Delivered != rep.Datagrams:
		return withCode(exitIncomplete, fmt.Errorf("%d of %d datagrams were delivered", rep.Delivered, rep.Datagrams))
	}
	return nil
}

// bindFrom binds the socket of a command that sends.
func (a *app) bindFrom(ctx context.Context, c *rdsd.Client, flag, from string, dst netip.Addr, wantOutcomes bool) (*rdsd.Socket, error) {
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
	opts := []rdsd.BindOption{rdsd.WithLabel("rdsd"), rdsd.WithReconnect(false)}
	if wantOutcomes {
		opts = append(opts, rdsd.WithOutcomes())
	}
	s, err := c.Bind(ctx, local, opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot bind %s: %w", local, dial.Cause(err))
	}
	return s, nil
}

// settle waits until everything accepted has its outcome.
func (a *app) settle(ctx context.Context, sock *rdsd.Socket, sent uint64) error {
	if sent == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	bctx, cancel := a.bounded(ctx)
	defer cancel()
	err := sock.Flush(bctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return withCode(exitTimeout, fmt.Errorf("not every datagram was acknowledged within %v, and what was not is cancelled now; rdsd peers shows the state of the connection, --timeout waits longer", a.timeout))
	}
	return err
}

func (a *app) printSent(r sendReport, withOutcomes bool) {
	if a.json {
		writeJSON(a.out, r)
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, from %s to %s in %s", plural(r.Datagrams, "datagram"), r.Bytes, r.From, r.To, r.Elapsed)
	if withOutcomes {
		fmt.Fprintf(&b, ": %d delivered, %d cancelled, %d failed, %d unknown", r.Delivered, r.Cancelled, r.Failed, r.Unknown)
	}
	fmt.Fprintln(a.out, b.String())
}
