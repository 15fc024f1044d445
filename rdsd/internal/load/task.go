package load

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// batchDatagrams bounds one send call; batchBytes too.
const (
	batchDatagrams = 64
	batchBytes     = 256 << 10
)

// task is one sending socket.
type task struct {
	c     *Config
	sock  *rdsd.Socket
	start time.Time
	meter *meter
	slots chan struct{} // one for each undecided datagram
	ended chan struct{} // closed when send has returned

	// Latency of one-way datagrams: a tag is known to send and to take, in
	// either order.
	mu      sync.Mutex
	sentAt  map[uint64]time.Time // guarded by mu; waits for its outcome
	decided map[uint64]time.Time // guarded by mu; came before send knew the tag; zero: not delivered
}

func newTask(ctx context.Context, client *rdsd.Client, c *Config, nr int, start time.Time, m *meter) (*task, error) {
	opts := []rdsd.BindOption{rdsd.WithLabel(fmt.Sprintf("rdsd stress %d", nr)), rdsd.WithReconnect(false)}
	if c.Mode == OneWay {
		opts = append(opts, rdsd.WithOutcomes())
	}
	local := netip.AddrPortFrom(c.From, 0)
	sock, err := client.Bind(ctx, local, opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot bind %s: %w", local, dial.Cause(err))
	}
	return &task{
		c: c, sock: sock, start: start, meter: m, slots: make(chan struct{}, c.Depth), ended: make(chan struct{}),
		sentAt: map[uint64]time.Time{}, decided: map[uint64]time.Time{},
	}, nil
}

// send keeps Depth datagrams under way until ctx ends. A batch begun then is
// still handed over, so that every datagram's fate is known; hard ends that too.
func (t *task) send(ctx, hard context.Context) error {
	defer close(t.ended)
	limit := rate.NewLimiter(rate.Inf, 1)
	if t.c.Rate > 0 {
		limit = rate.NewLimiter(rate.Limit(t.c.Rate/float64(t.c.Tasks)), 1)
	}
	most := max(min(batchDatagrams, batchBytes/t.c.Size), 1)
	if t.c.Rate > 0 {
		most = 1
	}
	arena := make([]byte, most*t.c.Size)
	batch := make([]rdsd.Datagram, 0, most)
	kind := uint8(kindOneWay)
	if t.c.Mode == RequestAck {
		kind = kindRequest
	}
	for seq := uint64(0); ; {
		n := t.grab(ctx, most)
		if n == 0 {
			return nil
		}
		// With a rate, the latency counts from when it was this datagram's
		// turn, not from when the generator got round to it.
		intended := time.Now()
		if t.c.Rate > 0 {
			r := limit.Reserve()
			wait := r.Delay()
			intended = intended.Add(wait)
			if !sleep(ctx, wait) {
				t.free() // n is 1: nothing is sent for it
				return nil
			}
		}
		batch = batch[:0]
		for i := range n {
			p := arena[i*t.c.Size:][:t.c.Size]
			if t.c.Verify {
				fill(p, seq)
			}
			header{kind: kind, seq: seq, sentNs: int64(intended.Sub(t.start))}.put(p, t.c.Verify)
			seq++
			batch = append(batch, rdsd.Datagram{Addr: t.c.To, Payload: p})
		}
		accepted, err := t.sock.SendBatch(hard, batch)
		if err != nil && ended(hard, err) {
			t.meter.sent(len(batch)) // some may have been accepted
			return nil
		}
		t.meter.sent(accepted)
		if t.c.Mode == OneWay {
			t.record(batch[:accepted], intended)
		}
		if err != nil {
			return fmt.Errorf("sending to %s: %w", t.c.To, dial.Cause(err))
		}
	}
}

// alternates reports whether one goroutine sends and receives: with one request
// under way each would only hand over to the other, and what is measured would be
// how fast Go wakes goroutines.
func (t *task) alternates() bool {
	return t.c.Mode == RequestAck && t.c.Depth == 1 && t.c.Rate == 0
}

// alternate sends a request and awaits its answer, until ctx ends. hard ends the
// wait for the last answer.
func (t *task) alternate(ctx, hard context.Context) error {
	defer close(t.ended)
	p := make([]byte, t.c.Size)
	batch := []rdsd.Datagram{{Addr: t.c.To, Payload: p}}
	var in answers
	for seq := uint64(0); ctx.Err() == nil; seq++ {
		if t.c.Verify {
			fill(p, seq)
		}
		header{kind: kindRequest, seq: seq, sentNs: int64(time.Since(t.start))}.put(p, t.c.Verify)
		t.slots <- struct{}{} // under way: settle waits for it
		accepted, err := t.sock.SendBatch(hard, batch)
		if err != nil && ended(hard, err) {
			t.meter.sent(1) // it may have been accepted
			return nil
		}
		t.meter.sent(accepted)
		if err != nil {
			return fmt.Errorf("sending to %s: %w", t.c.To, dial.Cause(err))
		}
		for len(t.slots) > 0 {
			if more, err := t.takeAnswers(hard, &in); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// grab takes up to n slots, waiting for the first; 0 when ctx ended.
func (t *task) grab(ctx context.Context, n int) int {
	select {
	case <-ctx.Done():
		return 0
	case t.slots <- struct{}{}:
	}
	for got := 1; got < n; got++ {
		select {
		case t.slots <- struct{}{}:
		default:
			return got
		}
	}
	return n
}

func (t *task) free() {
	select {
	case <-t.slots:
	default:
	}
}

func (t *task) record(batch []rdsd.Datagram, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, d := range batch {
		if when, ok := t.decided[d.Tag]; ok {
			delete(t.decided, d.Tag)
			if !when.IsZero() {
				t.meter.done(t.c.Size, when.Sub(at))
			}
			continue
		}
		t.sentAt[d.Tag] = at
	}
}

// take collects acknowledgements, or outcomes, until ctx ends.
func (t *task) take(ctx context.Context) error {
	if t.c.Mode == OneWay {
		return t.takeOutcomes(ctx)
	}
	var in answers
	for {
		if more, err := t.takeAnswers(ctx, &in); err != nil || !more {
			return err
		}
	}
}

// answers is where a task stands with what it receives.
type answers struct {
	next uint64 // sequence expected
	into [batchDatagrams]rdsd.Datagram
}

// takeAnswers waits for answers and takes them. It reports false after the end of ctx.
func (t *task) takeAnswers(ctx context.Context, in *answers) (bool, error) {
	n, err := t.sock.RecvBatch(ctx, in.into[:])
	if err != nil {
		if ended(ctx, err) {
			return false, nil
		}
		return false, fmt.Errorf("receiving from %s: %w", t.c.To, dial.Cause(err))
	}
	for _, d := range in.into[:n] {
		h, intact, ok := parse(d.Payload)
		if !ok || h.kind != kindAck {
			continue // somebody else's
		}
		if !intact || h.flags&flagDamaged != 0 || h.seq != in.next {
			t.meter.damaged()
		}
		in.next = h.seq + 1
		t.meter.done(t.c.Size, time.Since(t.start)-time.Duration(h.sentNs))
		t.free()
	}
	return true, nil
}

func (t *task) takeOutcomes(ctx context.Context) error {
	for o, err := range t.sock.Outcomes(ctx) {
		if err != nil {
			if ended(ctx, err) {
				return nil
			}
			return fmt.Errorf("outcomes of %s: %w", t.sock.LocalAddr(), dial.Cause(err))
		}
		now := time.Now()
		if o.Kind != rdsd.Delivered {
			t.meter.failed(o.Reason)
			now = time.Time{}
		}
		t.mu.Lock()
		if at, ok := t.sentAt[o.Tag]; ok {
			delete(t.sentAt, o.Tag)
			if !now.IsZero() {
				t.meter.done(t.c.Size, now.Sub(at))
			}
		} else {
			t.decided[o.Tag] = now
		}
		t.mu.Unlock()
		t.free()
	}
	return nil
}

// settle waits until nothing is under way and nothing more will be.
func (t *task) settle(ctx context.Context) {
	select {
	case <-t.ended:
	case <-ctx.Done():
		return
	}
	t.sock.Flush(ctx)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(t.slots) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
