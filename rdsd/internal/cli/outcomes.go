package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// outcomes counts the outcomes of a socket; its goroutine ends with stop.
type outcomes struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	counted map[verdict]uint64 // guarded by mu
	end     error              // guarded by mu; why there are no more
	reached chan struct{}      // poked at every outcome
}

// verdict is an outcome without its datagram.
type verdict struct {
	kind   rdsd.OutcomeKind
	reason string
}

// noSuchPort is the reason of a datagram to a port that nobody has bound.
const noSuchPort = "no such port"

// undecided is the reason of what the command could not wait for.
const undecided = "not decided when the command ended"

// collectOutcomes counts until stop is called, whatever becomes of ctx: the
// outcomes of a command that is interrupted belong into its sum. With show each
// datagram that was not delivered gets a line.
func (a *app) collectOutcomes(ctx context.Context, sock *rdsd.Socket, show bool) *outcomes {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	o := &outcomes{cancel: cancel, done: make(chan struct{}), counted: map[verdict]uint64{}, reached: make(chan struct{}, 1)}
	go func() { // ended by stop
		defer close(o.done)
		for oc, err := range sock.Outcomes(ctx) {
			if err != nil {
				o.mu.Lock()
				o.end = err
				o.mu.Unlock()
				return
			}
			if show && oc.Kind != rdsd.Delivered && !a.json {
				say(a.err, "datagram %d: %s: %s\n", oc.Tag, oc.Kind, oc.Reason)
			}
			o.mu.Lock()
			o.counted[verdict{oc.Kind, oc.Reason}]++
			o.mu.Unlock()
			select {
			case o.reached <- struct{}{}:
			default:
			}
		}
	}()
	return o
}

// wait reports whether n outcomes were counted before ctx ended, nothing was
// decided for idle (0: that is no reason), or there can be no more.
func (o *outcomes) wait(ctx context.Context, n uint64, idle time.Duration) bool {
	var expired <-chan time.Time
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for o.total() < n {
		if idle > 0 {
			timer.Reset(idle)
			expired = timer.C
		}
		select {
		case <-o.reached:
		case <-o.done:
			return o.total() >= n
		case <-expired:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (o *outcomes) total() (n uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.counted {
		n += k
	}
	return n
}

// over is why there are no more outcomes, nil while there may be.
func (o *outcomes) over() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end
}

// rest counts what is missing to n as unknown. Call it once, at the end.
func (o *outcomes) rest(n uint64) {
	if t := o.total(); t < n {
		o.mu.Lock()
		o.counted[verdict{rdsd.Unknown, undecided}] += n - t
		o.mu.Unlock()
	}
}

func (o *outcomes) counts() (delivered, cancelled, failed, unknown uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := map[rdsd.OutcomeKind]uint64{}
	for v, n := range o.counted {
		by[v.kind] += n
	}
	return by[rdsd.Delivered], by[rdsd.Cancelled], by[rdsd.Failed], by[rdsd.Unknown]
}

// why says, for people, what became of the datagrams that were not delivered.
func (o *outcomes) why(dst netip.AddrPort) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(o.counted), func(a, b verdict) int {
		return cmp.Or(cmp.Compare(o.counted[b], o.counted[a]), cmp.Compare(a.reason, b.reason))
	})
	var l []string
	for _, v := range keys {
		if v.kind == rdsd.Delivered {
			continue
		}
		reason := v.reason
		if reason == noSuchPort {
			reason = fmt.Sprintf("nobody has bound %s", dst)
		}
		l = append(l, fmt.Sprintf("%d %s (%s)", o.counted[v], v.kind, reason))
	}
	if len(l) == 0 {
		return "none was accepted"
	}
	return strings.Join(l, ", ")
}

func (o *outcomes) stop() {
	o.cancel()
	<-o.done
}
