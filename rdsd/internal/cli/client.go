package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// dial opens a client of the daemon this invocation talks to.
func (a *app) dial(ctx context.Context) (*rdsd.Client, error) {
	return a.dialAt(ctx, dial.Target(a.socket))
}

// dialAt is dial of the daemon at target, within --timeout.
func (a *app) dialAt(ctx context.Context, target string) (*rdsd.Client, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return dialTarget(ctx, target)
}

func dialTarget(ctx context.Context, target string) (*rdsd.Client, error) {
	c, err := dial.Dial(ctx, target)
	if e, ok := errors.AsType[*dial.Error](err); ok {
		return nil, withCode(dialExit[e.Reason], err)
	}
	return c, err
}

var dialExit = map[dial.Reason]int{
	dial.Unreachable: exitUnreachable,
	dial.Denied:      exitDenied,
	dial.BadTarget:   exitUsage,
}

// bounded gives ctx the time of --timeout.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// whole gives the command of cmd the time of --timeout, if that was given: then
// it bounds everything. Its default bounds single waits (bounded).
func (a *app) whole(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	if !cmd.Flags().Changed("timeout") {
		return context.WithCancel(cmd.Context())
	}
	return a.bounded(cmd.Context())
}

// admin runs fn with the administration of the daemon, within --timeout.
func (a *app) admin(ctx context.Context, fn func(context.Context, *rdsd.Admin) error) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	return a.adminStream(ctx, fn)
}

// adminStream is admin without a deadline, for commands that watch.
func (a *app) adminStream(ctx context.Context, fn func(context.Context, *rdsd.Admin) error) error {
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return dial.Cause(fn(ctx, c.Admin()))
}

// opened begins to watch, and waits for --timeout at most until the daemon does. Watching itself has no end but ctx's.
func opened[T any](ctx context.Context, a *app, open func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	watch, cancel := context.WithCancel(ctx)
	inTime := func() bool { return true }
	if a.timeout > 0 {
		inTime = time.AfterFunc(a.timeout, cancel).Stop
	}
	seq := open(watch)
	late := !inTime()
	return func(yield func(T, error) bool) {
		defer cancel()
		if late {
			var none T
			yield(none, context.DeadlineExceeded)
			return
		}
		seq(yield)
	}
}

// localAddrs are the RDS addresses of the daemon behind c.
func localAddrs(ctx context.Context, c *rdsd.Client) ([]netip.Addr, error) {
	st, err := c.Admin().Status(ctx)
	if err != nil {
		return nil, dial.Cause(err)
	}
	return st.LocalAddresses, nil
}

// chooseLocal completes a local address that names no address: one of the
// daemon's own, of the family of dst, loopback towards loopback.
func chooseLocal(ctx context.Context, c *rdsd.Client, local netip.AddrPort, dst netip.Addr) (netip.AddrPort, error) {
	if local.Addr().IsValid() {
		return local, nil
	}
	all, err := localAddrs(ctx, c)
	if err != nil {
		return local, err
	}
	best := netip.Addr{}
	for _, a := range all {
		if dst.IsValid() && a.Is4() != dst.Is4() {
			continue
		}
		if !best.IsValid() || (dst.IsValid() && best.IsLoopback() != dst.IsLoopback() && a.IsLoopback() == dst.IsLoopback()) {
			best = a
		}
	}
	if !best.IsValid() {
		family := "IPv4"
		if dst.IsValid() && dst.Is6() {
			family = "IPv6"
		}
		return local, usagef("this daemon has no %s address to speak from (it has %s); start it with --address", family, strings.Trim(fmt.Sprint(all), "[]"))
	}
	return netip.AddrPortFrom(best, local.Port()), nil
}

// chooseDestination picks, of the addresses a name has, the first whose family
// the daemon has an address of.
func (a *app) chooseDestination(ctx context.Context, c *rdsd.Client, dsts []netip.AddrPort) (netip.AddrPort, error) {
	if len(dsts) == 1 {
		return dsts[0], nil
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	all, err := localAddrs(ctx, c)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, d := range dsts {
		for _, l := range all {
			if l.Is4() == d.Addr().Is4() {
				return d, nil
			}
		}
	}
	return dsts[0], nil // the refusal of the bind says what is missing
}

// explain is the line a person sees for err.
func explain(err error) string {
	if _, own := errors.AsType[*codeError](err); own {
		return err.Error()
	}
	switch {
	case errors.Is(err, rdserr.ErrTimeout):
		return err.Error() + " (see --timeout)"
	case errors.Is(err, rdserr.ErrShutdown):
		return err.Error() + "; is the daemon still running? (rdsd status)"
	case errors.Is(err, context.DeadlineExceeded):
		return strings.Replace(err.Error(), context.DeadlineExceeded.Error(), "the deadline passed", 1) + " (see --timeout)"
	}
	return err.Error()
}
