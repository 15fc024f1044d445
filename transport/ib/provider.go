package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

// Provider makes one-sided links over a device. Its exported fields are set before it is
// used.
type Provider struct {
	// Guard contains panics of the owners of links; nil: they end the process.
	Guard *guard.Guard
	// Charge is asked before a link with peer reserves n bytes, and told with n < 0 when they
	// have been given back. An error keeps the link from being made, or ends it. A link's lock
	// is held during the call. nil: nothing is counted.
	Charge func(peer netip.Addr, n int) error

	// Local reports whether an address is this machine's, of whose users not all may be peers.
	// Requests from there that did not come from RoCEv2's own port are refused, because the kernel
	// cannot be asked whose they are. It may block. nil: none is.
	Local func(netip.Addr) bool

	v    Verbs
	m    *Machine
	info Info
	// Of the turn under way; owned by the reactor's thread.
	done  []Completion
	again []Slot // to be posted again

	mu      sync.Mutex // guards changes of the fields below
	kept    []func()   // release what Memory has given
	adopted extents    // what the device can read, if that is not all
}

var _ transport.OneSidedProvider = (*Provider)(nil)

const (
	// pollBatch is how many completions are taken at once, and so about how many events a
	// handler has between Begin and End: answers leave together, and the first does not wait
	// for long.
	pollBatch = 64
	// turnBatches is how many batches one link takes before others have their turn.
	turnBatches = 4
	// dialTime is how long DialOneSided waits, all in all.
	dialTime = 30 * time.Second
	// retries is the largest count there is. Of a receiver that is not ready it means for ever:
	// a peer that is slow to post its receives is not to be taken for dead.
	retries = 7
)

// New makes a provider of links over v, which outlives it.
func New(v Verbs) *Provider { return NewOn(v, ThisMachine) }

// NewOn is New on m.
func NewOn(v Verbs, m *Machine) *Provider {
	return &Provider{v: v, m: m, info: v.Info(), done: make([]Completion, pollBatch), again: make([]Slot, 0, pollBatch)}
}

// OneSidedCaps are those of the device.
func (p *Provider) OneSidedCaps() transport.OneSidedCaps {
	c := p.info.Caps
	return transport.OneSidedCaps{SecretKeys: c.SecretKeys, Places: c.Places, Faults: c.Faults,
		PeerRevokes: c.PeerRevokes, Fills: c.Fills, Guards: c.Guards, Pinned: c.Pinned}
}

// Memory is kept by the device until Close.
func (p *Provider) Memory(n int) ([]byte, error) {
	b, release, err := p.v.Memory(n)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = append(p.kept, release)
	p.adopted.add(b)
	return b, nil
}

// Adopt makes b memory that can be posted without being copied.
func (p *Provider) Adopt(b []byte) (release func(), err error) {
	f, err := p.v.Adopt(b)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.adopted.add(b)
	return sync.OnceFunc(func() {
		p.mu.Lock()
		p.adopted.remove(b)
		p.mu.Unlock()
		f()
	}), nil
}

// Close gives back what Memory has given. All links have said Closed before.
func (p *Provider) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, release := range p.kept {
		release()
	}
	p.kept = nil
}

// NewDomain makes a domain. If the device has none left, nothing can be registered in it and
// no link be made, which then says why.
func (p *Provider) NewDomain() transport.Domain {
	var seed [32]byte
	for i := 0; i < len(seed); i += 8 {
		binary.LittleEndian.PutUint64(seed[i:], p.m.Seed())
	}
	return newDomain(p, seed)
}

func (p *Provider) domain(d transport.Domain) (*domain, error) {
	of, ok := d.(*domain)
	if !ok {
		g, guarded := d.(*guardedDomain)
		if !guarded {
			return nil, fmt.Errorf("ib: a domain of type %T is not this provider's; make one with NewDomain", d)
		}
		of = g.domain
	}
	if of.p != p {
		return nil, errors.New("ib: the domain is another device's")
	}
	return of, of.err
}

// DialOneSided connects. It takes no longer than half a minute, and ends when ctx does.
func (p *Provider) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	if len(private) > transport.MaxConnect {
		return nil, nil, fmt.Errorf("ib: %d bytes to be shown to %v; a REQ has %d", len(private), remote, transport.MaxConnect)
	}
	of, err := p.domain(d)
	if err != nil {
		return nil, nil, err
	}
	l, err := newLink(of, attr, remote)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := p.m.Timeout(ctx, dialTime)
	defer cancel()
	peer, err := p.v.Dial(ctx, local, remote, l.qp, Param{Private: private, Retry: retries, RNRRetry: retries})
	if err != nil {
		l.Close()
		if r, ok := errors.AsType[*Rejected](err); ok && r.Reason == ReasonConsumer {
			return nil, nil, &transport.Refused{Remote: r.Remote, Private: r.Private}
		}
		return nil, nil, fmt.Errorf("connecting to %v: %w", remote, err)
	}
	l.local, l.remote = peer.Local, peer.Remote
	l.Established()
	return l, peer.Param.Private, nil
}
