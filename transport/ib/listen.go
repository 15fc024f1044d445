package ib

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

const (
	// maxAnswering is how many calls of accept of a listener there are at a time.
	maxAnswering = 64
	// maxWaiting is how many requests wait for their turn. Each keeps one of the places of those
	// that are unanswered, of which a device has 1,024 (package roce/cm), from all others. Some
	// sources can take all of them, whether they may be peers or not: who need not wait is answered
	// all the same.
	maxWaiting = 256
)

// listener has a goroutine for each call of accept and for each request that waits for its
// turn, which Close waits for.
type listener struct {
	transport.Listener // the device's
	p                  *Provider
	accept             func(transport.ConnRequest)
	over               chan struct{} // closed with closed

	mu      sync.Mutex
	closed  bool          // guarded by mu
	busy    int           // goroutines; guarded by mu
	waiting int           // of them, those whose turn has not come; guarded by mu
	idle    chan struct{} // closed when there is none any more; nil: nobody waits; guarded by mu
	pace    pace          // guarded by mu
}

// ListenOneSided accepts on local. A request that is not answered in half a minute is
// rejected.
func (p *Provider) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	l := &listener{p: p, accept: accept, over: make(chan struct{})}
	var err error
	l.Listener, err = p.v.Listen(local, l.ask)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ask is called on the reactor's thread, which accept may keep waiting. A request that has no turn has
// no answer: many are of nobody knows whom, and may be in a peer's name, and refused for them a kernel
// would give its path up, while without an answer it asks again.
func (l *listener) ask(a Asked) {
	wait, ok := l.admit(a.RemoteAddr().Addr(), a.FromPort())
	if !ok {
		a.Forget()
		return
	}
	l.p.m.Go(func() { l.call(a, wait) })
}

// admit says how long a request waits for its turn, and whether there is one: not if too many are
// answered or have to wait as well, or if its source asks too fast.
func (l *listener) admit(from netip.Addr, fromPort bool) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.busy-l.waiting >= maxAnswering {
		return 0, false
	}
	if wait, ok = l.pace.take(l.p.m.Clock(), from, fromPort); !ok || wait > 0 && l.waiting >= maxWaiting {
		return 0, false
	}
	l.busy++
	if wait > 0 {
		l.waiting++
	}
	return wait, true
}

// turn waits for the turn of a request, and reports whether it is to be answered.
func (l *listener) turn(wait time.Duration) bool {
	if wait == 0 {
		return true
	}
	ctx, cancel := l.p.m.Timeout(context.Background(), wait)
	l.p.m.Wait(ctx.Done(), l.over)
	cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.busy-l.waiting < maxAnswering
	l.waiting--
	return room && !l.closed
}

func (l *listener) call(a Asked, wait time.Duration) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.busy--; l.busy == 0 && l.idle != nil {
			close(l.idle)
		}
	}()
	defer l.p.Guard.Recover(guard.Accept, func(error) { a.Reject(nil) })
	if !l.turn(wait) {
		a.Forget()
		return
	}
	guard.Point("handshake")
	if l.p.Local != nil && !a.FromPort() && l.p.Local(a.RemoteAddr().Addr()) {
		a.Reject(nil)
		return
	}
	l.accept(&connRequest{p: l.p, asked: a})
}

// Close waits for calls of accept to return.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.over)
	}
	idle := l.idle
	if l.busy > 0 && idle == nil {
		idle = make(chan struct{})
		l.idle = idle
	}
	l.mu.Unlock()
	if idle != nil {
		l.p.m.Wait(idle)
	}
	return err
}

// connRequest is a peer's request to connect.
type connRequest struct {
	p        *Provider
	asked    Asked
	answered atomic.Bool
}

func (q *connRequest) Private() []byte            { return q.asked.Param().Private }
func (q *connRequest) LocalAddr() netip.AddrPort  { return q.asked.LocalAddr() }
func (q *connRequest) RemoteAddr() netip.AddrPort { return q.asked.RemoteAddr() }

var errAnswered = errors.New("ib: the request to connect has been answered before")

// Accept makes the link. Work that is posted to it waits until the peer has taken the
// connection.
func (q *connRequest) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	if len(private) > transport.MaxAccept {
		return nil, fmt.Errorf("ib: %d bytes to be shown to %v; a REP has %d", len(private), q.RemoteAddr(), transport.MaxAccept)
	}
	of, err := q.p.domain(d)
	if err != nil {
		return nil, err
	}
	if q.answered.Load() {
		return nil, errAnswered
	}
	l, err := newLink(of, attr, q.RemoteAddr())
	if err != nil {
		return nil, err // which its owner may give as a reason
	}
	if q.answered.Swap(true) {
		l.Close()
		return nil, errAnswered
	}
	l.local = q.LocalAddr()
	if err := q.asked.Accept(l.qp, Param{Private: private, Retry: retries, RNRRetry: retries}); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (q *connRequest) Reject(private []byte) {
	if !q.answered.Swap(true) {
		q.asked.Reject(private[:min(len(private), transport.MaxReject)])
	}
}
