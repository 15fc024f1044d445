package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

type pingOptions struct {
	socket   string
	count    uint64 // 0: until interrupted
	interval time.Duration
	source   netip.Addr
	dest     netip.Addr
}

// reply is what became of one ping.
type reply struct {
	nr  uint64
	rtt time.Duration
	err error
}

func runPing(ctx context.Context, args []string, out, errw io.Writer) int {
	o, err := parsePing(ctx, args)
	if errors.Is(err, pflag.ErrHelp) {
		pingUsage(out)
		return 0
	}
	if err != nil {
		fmt.Fprintln(errw, capital(err.Error()))
		pingUsage(errw)
		return 1
	}
	c, err := dial.Dial(ctx, dial.Target(o.socket))
	if err != nil {
		fmt.Fprintf(errw, "rds-ping: %v\n", err)
		return 1
	}
	defer c.Close()
	return o.ping(ctx, c.Admin(), out)
}

func pingUsage(w io.Writer) {
	fmt.Fprintf(w, "rds-ping of rdsd, like version %s\nUsage: rds-ping [options] dst_addr\nOptions:\n"+
		" -c count      stop after so many packets\n -i interval   time between packets: seconds, 10ms, 50us (default 1)\n"+
		" -I address    source IP address\n -Q tos        type of service; RDS over TCP has one only, so it changes nothing\n", Version)
}

func parsePing(ctx context.Context, args []string) (pingOptions, error) {
	o := pingOptions{}
	var interval, source string
	var tos uint64
	f := newFlags("rds-ping", &o.socket)
	f.VarP(number{&o.count, ^uint64(0)}, "count", "c", "stop after so many packets")
	f.StringVarP(&interval, "interval", "i", "1", "time between packets")
	f.StringVarP(&source, "source", "I", "", "source address")
	f.VarP(number{&tos, 255}, "tos", "Q", "type of service")
	if err := f.Parse(args); err != nil {
		return o, fmt.Errorf("unknown option: %w", err)
	}
	if f.NArg() != 1 {
		return o, errors.New("missing destination address")
	}
	var err error
	if o.interval, err = parseInterval(interval); err != nil {
		return o, err
	}
	if source != "" {
		if o.source, err = resolve(ctx, source); err != nil {
			return o, fmt.Errorf("unknown source address <%s>", source)
		}
	}
	if o.dest, err = resolve(ctx, f.Arg(0)); err != nil {
		return o, fmt.Errorf("cannot parse destination address <%s>", f.Arg(0))
	}
	return o, nil
}

// pingSlots is how many pings may be on their way at once: the old tool has so
// many sockets and reuses them in turn.
const pingSlots = 8

// ping sends at the interval, prints replies as they come, and ends one
// interval after the last packet, or with its reply.
func (o pingOptions) ping(ctx context.Context, c *rdsd.Admin, out io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := make(chan reply, pingSlots)
	slots := make(chan struct{}, pingSlots)
	interval := max(o.interval, 10*time.Microsecond)
	next := time.NewTimer(0)
	defer next.Stop()
	var sent, received uint64
	for o.count == 0 || received < o.count {
		select {
		case <-ctx.Done():
			return pingStatus(received)
		case r := <-replies:
			if r.print(out) {
				received++
			}
		case <-next.C:
			if o.count != 0 && sent >= o.count {
				for len(replies) > 0 { // in time, though not seen before it was over
					if r := <-replies; r.print(out) {
						received++
					}
				}
				return pingStatus(received)
			}
			next.Reset(interval)
			select {
			case slots <- struct{}{}:
			default:
				continue // every slot waits: send none until one is free
			}
			sent++
			go func(nr uint64) { // ends with its answer, its deadline or ctx
				r := o.one(ctx, c, nr)
				<-slots
				select {
				case replies <- r:
				case <-ctx.Done():
				}
			}(sent)
		}
	}
	return pingStatus(received)
}

func pingStatus(received uint64) int {
	if received == 0 {
		return 1
	}
	return 0
}

func (o pingOptions) one(ctx context.Context, c *rdsd.Admin, nr uint64) reply {
	wait := max(pingSlots*o.interval, time.Second)
	ctx, cancel := context.WithTimeout(ctx, wait+time.Second)
	defer cancel()
	pong, err := c.Ping(ctx, rdsd.PingSpec{Remote: o.dest, Local: o.source, Timeout: wait})
	if err != nil {
		return reply{nr: nr, err: err}
	}
	return reply{nr: nr, rtt: pong.RTT}
}

// print writes one line and reports whether it was a reply. A packet without
// an answer in time has no line.
func (r reply) print(w io.Writer) bool {
	switch {
	case r.err == nil:
		fmt.Fprintf(w, " %3d: %d usec\n", r.nr, r.rtt.Microseconds())
		return true
	case errors.Is(r.err, rdserr.ErrTimeout), errors.Is(r.err, rdserr.ErrCanceled):
	default:
		fmt.Fprintf(w, " %3d: ERROR: %s\n", r.nr, reason(r.err))
	}
	return false
}
