package load

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Mode is what a task does.
type Mode string

const (
	// OneWay sends; the latency is from sending to the outcome "delivered".
	OneWay Mode = "one-way"
	// RequestAck sends and is answered by a Responder; the latency is the
	// round trip.
	RequestAck Mode = "request-ack"
)

// Config is one run.
type Config struct {
	Mode     Mode
	From     netip.Addr // address the tasks bind
	To       netip.AddrPort
	Size     int           // bytes of a datagram, HeaderBytes to 1 MiB
	AckSize  int           // bytes of an answer, at least HeaderBytes
	Tasks    int           // sockets
	Depth    int           // undecided datagrams of each task at most
	Rate     float64       // datagrams a second of all tasks; 0: no limit
	Verify   bool          // checksum contents
	Duration time.Duration // 0: until the context ends
	Interval time.Duration // between two Reports; 0: a second
}

// Validate says what is wrong with c.
func (c *Config) Validate() error {
	switch {
	case c.Mode != OneWay && c.Mode != RequestAck:
		return fmt.Errorf("mode %q is neither %s nor %s", c.Mode, OneWay, RequestAck)
	case c.Size < HeaderBytes || c.Size > 1<<20:
		return fmt.Errorf("size %d: it must be %d to %d bytes", c.Size, HeaderBytes, 1<<20)
	case c.AckSize < HeaderBytes || c.AckSize > 1<<20:
		return fmt.Errorf("ack size %d: it must be %d to %d bytes", c.AckSize, HeaderBytes, 1<<20)
	case c.Tasks < 1 || c.Tasks > 1024:
		return fmt.Errorf("tasks %d: it must be 1 to 1024", c.Tasks)
	case c.Depth < 1 || c.Depth > 65536:
		return fmt.Errorf("depth %d: it must be 1 to 65536", c.Depth)
	case !(c.Rate >= 0): // NaN too
		return fmt.Errorf("rate %v: it must be a number that is not negative", c.Rate)
	case c.Duration < 0:
		return fmt.Errorf("duration %v: it cannot be negative", c.Duration)
	}
	return nil
}

// Run sends until the duration or ctx is over, hands a Report each interval to
// report, lets what is under way come home, and returns the totals. The error
// is the first of any task; totals are valid with it too.
func Run(ctx context.Context, client *rdsd.Client, c Config, report func(Report)) (Report, error) {
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	sending := ctx
	if c.Duration > 0 {
		var cancel context.CancelFunc
		sending, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	// Answers are awaited a little longer than requests are sent.
	taking, stopTaking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopTaking()
	start := time.Now()
	meter := newMeter(start)
	var wg sync.WaitGroup
	var tasks []*task
	defer func() {
		for _, t := range tasks {
			t.sock.Close()
		}
	}()
	for i := range c.Tasks {
		t, err := newTask(ctx, client, &c, i, start, meter)
		if err != nil {
			return meter.total(), err
		}
		tasks = append(tasks, t)
	}
	failed := make(chan error, 2*c.Tasks)
	sending, stopSending := context.WithCancel(sending)
	defer stopSending()
	for _, t := range tasks {
		if t.alternates() {
			wg.Go(func() { failed <- t.alternate(sending, taking) })
			continue
		}
		wg.Go(func() { failed <- t.take(taking) })
		wg.Go(func() { failed <- t.send(sending, taking) })
	}
	var first error
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	for sending.Err() == nil {
		select {
		case <-tick.C:
			report(meter.interval())
		case err := <-failed:
			if err != nil && first == nil {
				first = err
			}
			stopSending()
		case <-sending.Done():
		}
	}
	home, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if first == nil {
		for _, t := range tasks {
			t.settle(home)
		}
	}
	meter.freeze()
	stopTaking()
	wg.Wait()
	close(failed)
	for err := range failed {
		if err != nil && first == nil {
			first = err
		}
	}
	return meter.total(), first
}

// ended reports whether err is only the end of ctx.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}
