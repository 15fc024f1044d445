package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// outcomes counts the outcomes of a socket; its goroutine ends with stop.
type outcomes struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	counted map[rdsd.OutcomeKind]uint64 // guarded by mu
	reached chan struct{}               // poked at every outcome
}

func (a *app) collectOutcomes(ctx context.Context, sock *rdsd.Socket) *outcomes {
	ctx, cancel := context.WithCancel(ctx)
	o := &outcomes{cancel: cancel, done: make(chan struct{}), counted: map[rdsd.OutcomeKind]uint64{}, reached: make(chan struct{}, 1)}
	go func() {
		defer close(o.done)
		for oc, err := range sock.Outcomes(ctx) {
			if err != nil {
				return
			}
			if oc.Kind != rdsd.Delivered && !a.json {
				fmt.Fprintf(a.err, "datagram %d: %s: %s\n", oc.Tag, oc.Kind, oc.Reason)
			}
			o.mu.Lock()
			o.counted[oc.Kind]++
			o.mu.Unlock()
			select {
			case o.reached <- struct{}{}:
			default:
			}
		}
	}()
	return o
}

// wait returns when n outcomes were counted, or after limit.
func (o *outcomes) wait(n uint64, limit time.Duration) {
	var expired <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		expired = t.C
	}
	for {
		d, c, f, u := o.counts()
		if d+c+f+u >= n {
			return
		}
		select {
		case <-o.reached:
		case <-o.done:
			return
		case <-expired:
			return
		}
	}
}

func (o *outcomes) counts() (delivered, cancelled, failed, unknown uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counted[rdsd.Delivered], o.counted[rdsd.Cancelled], o.counted[rdsd.Failed], o.counted[rdsd.Unknown]
}

func (o *outcomes) stop() {
	o.cancel()
	<-o.done
}
