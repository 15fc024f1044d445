package ib

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

// maxAnswering is how many calls of accept of a listener there are at a time. A request
// beyond them is refused, and the peer tries again; so is one beyond its source's pace.
const maxAnswering = 64

// listener has a goroutine for each call of accept, which Close waits for.
type listener struct {
	transport.Listener // the device's
	p                  *Provider
	accept             func(transport.ConnRequest)

	mu     sync.Mutex
	closed bool          // guarded by mu
	busy   int           // calls under way; guarded by mu
	idle   chan struct{} // closed when none is any more; nil: nobody waits; guarded by mu
	pace   pace          // guarded by mu
}

// ListenOneSided accepts on local. A request that is not answered in half a minute is
// rejected.
func (p *Provider) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	l := &listener{p: p, accept: accept}
	var err error
	l.Listener, err = p.v.Listen(local, l.ask)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ask is called on the reactor's thread, which accept may keep waiting.
func (l *listener) ask(a Asked) {
	l.mu.Lock()
	if l.closed || l.busy == maxAnswering || !l.pace.take(l.p.m.Clock(), a.RemoteAddr().Addr()) {
		l.mu.Unlock()
		a.Reject(nil)
		return
	}
	l.busy++
	l.mu.Unlock()
	l.p.m.Go(func() { l.call(a) })
}

func (l *listener) call(a Asked) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.busy--; l.busy == 0 && l.idle != nil {
			close(l.idle)
		}
	}()
	defer l.p.Guard.Recover(guard.Accept, func(error) { a.Reject(nil) })
	guard.Point("handshake")
	l.accept(&connRequest{p: l.p, asked: a})
}

// Close waits for calls of accept to return.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	l.closed = true
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
	if q.answered.Swap(true) {
		return nil, errAnswered
	}
	l, err := newLink(of, attr, q.RemoteAddr())
	if err != nil {
		q.asked.Reject(nil)
		return nil, err
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
