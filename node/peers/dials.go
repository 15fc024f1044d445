package peers

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// Connections that are being made, for datagrams and for volumes: each is a goroutine, a
// descriptor and a source port, for as long as the network takes to say yes or nothing. When
// a daemon starts, or its switch has come back, all of them are due at one moment, so there
// is a limit (limits.max_dials), and what is beyond it waits in turn. How long a path pauses
// before it dials again is its core's rule (conn.Lane, rtrs.ClientPath: full jitter between
// reconnect_min and reconnect_max); that wait is over when it comes here.
//
// Two shares keep the ones from waiting for the others:
//
//   - one peer has a quarter at most. That is what the other side's limits.max_handshakes
//     gives one source, and a session of volumes with many paths cannot keep others out;
//   - peers of which the last attempt failed have half at most, together. Whoever is not
//     there costs an attempt its whole time limit, and a rack that is off must not keep
//     those from being reached that are there.

const (
	dialShare = 4 // the part of limits.max_dials that one peer may have
	dialAgain = 2 // and the part of those that failed the last time
	// dialsFailed is how many addresses are remembered whose last attempt failed; beyond
	// that the one is forgotten that failed first.
	dialsFailed = 16384
)

// dials are those of a node. The zero value is ready.
//
// Invariant: n is the sum over under, and again at most n.
type dials struct {
	mu      sync.Mutex                   // nothing is called with it held
	n       int                          // under way; guarded by mu
	again   int                          // of them, to peers that had failed; guarded by mu
	under   map[netip.Addr]int           // by peer; guarded by mu
	waiting list.List                    // of *dial, in turn; guarded by mu
	failed  map[netip.Addr]*list.Element // those whose last attempt failed; guarded by mu
	order   list.List                    // of netip.Addr, of failed, the one that failed first in front; guarded by mu
	refused uint64                       // that waited until their time was over; guarded by mu
}

// dial is one connection that is being made, or waits for its turn.
type dial struct {
	to    netip.Addr
	again bool          // its peer had failed when it began
	begun chan struct{} // closed when it is its turn
}

// begin waits until a connection to peer may be made, at most until ctx ends; end must
// follow unless it fails.
func (t *dials) begin(ctx context.Context, to netip.Addr, most func() int) (*dial, error) {
	x := &dial{to: to.Unmap().WithZone(""), begun: make(chan struct{})}
	t.mu.Lock()
	if t.under == nil {
		t.under, t.failed = map[netip.Addr]int{}, map[netip.Addr]*list.Element{}
	}
	at := t.waiting.PushBack(x)
	t.next(most())
	t.mu.Unlock()
	select {
	case <-x.begun:
		return x, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-x.begun: // meanwhile
		return x, nil
	default:
	}
	t.waiting.Remove(at)
	t.refused++
	return nil, rdserr.With(rdserr.ErrTimeout, "%d connections are being made, to %v %d of them (limits.max_dials): %v", t.n, x.to, t.under[x.to], ctx.Err())
}

// next begins those whose turn it is. mu is held.
func (t *dials) next(most int) {
	for at := t.waiting.Front(); at != nil && t.n < most; {
		x := at.Value.(*dial)
		here := at
		at = at.Next()
		_, x.again = t.failed[x.to]
		if t.under[x.to] >= max(1, most/dialShare) || x.again && t.again >= max(1, most/dialAgain) {
			continue // the next in turn may
		}
		t.waiting.Remove(here)
		t.n++
		t.under[x.to]++
		if x.again {
			t.again++
		}
		close(x.begun)
	}
}

// end ends what begin has begun. answered says whether the peer was there, whatever it said.
func (t *dials) end(x *dial, answered bool, most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if x.again {
		t.again--
	}
	if t.under[x.to]--; t.under[x.to] == 0 {
		delete(t.under, x.to)
	}
	if at, ok := t.failed[x.to]; ok {
		t.order.Remove(at)
		delete(t.failed, x.to)
	}
	if !answered {
		if t.order.Len() >= dialsFailed {
			delete(t.failed, t.order.Remove(t.order.Front()).(netip.Addr))
		}
		t.failed[x.to] = t.order.PushBack(x.to)
	}
	t.next(most)
}

func (t *dials) budget(most int) base.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return base.Budget{Name: "dials", Used: uint64(t.n), Limit: uint64(most), Refused: t.refused}
}

func (r *Registry) maxDials() int { return r.deps.Conf().Limits.MaxDials }

// paced is a transport of frames whose connections are made in turn.
type paced struct {
	transport.Provider
	r *Registry
}

// pacedOneSided is a transport of one-sided links whose connections are made in turn, with
// those of frames.
type pacedOneSided struct {
	transport.OneSidedProvider
	r *Registry
}

// homes is a provider whose domains can be put on a reactor, as those of TCP.
type homes interface {
	NewDomainOn(*reactor.Reactor) (transport.Domain, error)
}

var _, _ homes = (*tcp.Provider)(nil), (*pacedOneSided)(nil)

// NewDomainOn makes a domain on a reactor, if the provider can.
func (p *pacedOneSided) NewDomainOn(r *reactor.Reactor) (transport.Domain, error) {
	if at, ok := p.OneSidedProvider.(homes); ok {
		return at.NewDomainOn(r)
	}
	return nil, rdserr.With(rdserr.ErrNotSupported, "links of this kind choose their reactor themselves")
}

// Dial implements transport.Provider.
func (p *paced) Dial(ctx context.Context, local, remote netip.AddrPort, lane int) (transport.Link, error) {
	x, err := p.r.dials.begin(ctx, remote.Addr(), p.r.maxDials)
	if err != nil {
		return nil, err
	}
	answered := false
	defer func() { p.r.dials.end(x, answered, p.r.maxDials()) }() // a panic ends it too
	l, err := p.Provider.Dial(ctx, local, remote, lane)
	answered = err == nil
	return l, err
}

// DialOneSided implements transport.OneSidedProvider.
func (p *pacedOneSided) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	x, err := p.r.dials.begin(ctx, remote.Addr(), p.r.maxDials)
	if err != nil {
		return nil, nil, err
	}
	answered := false
	defer func() { p.r.dials.end(x, answered, p.r.maxDials()) }() // a panic ends it too
	l, rsp, err := p.OneSidedProvider.DialOneSided(ctx, local, remote, d, attr, private)
	_, refused := errors.AsType[*transport.Refused](err)
	answered = err == nil || refused
	return l, rsp, err
}
