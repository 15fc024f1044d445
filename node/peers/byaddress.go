package peers

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// byAddress is one kind of links of which each address of this node has a provider of its
// own, as RDMA devices have. A domain is that of the address which its first link has.
type byAddress struct {
	of   map[netip.Addr]transport.OneSidedProvider
	list []transport.OneSidedProvider // in the order of the addresses
	caps transport.OneSidedCaps
}

// ByAddress makes one provider of those of several addresses. There is one at least, and they
// are of one kind.
func ByAddress(of map[netip.Addr]transport.OneSidedProvider) transport.OneSidedProvider {
	p := &byAddress{of: of}
	var addrs []netip.Addr
	for a := range of {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs {
		p.list = append(p.list, of[a])
	}
	p.caps = p.list[0].OneSidedCaps()
	return p
}

func (p *byAddress) at(a netip.Addr) (transport.OneSidedProvider, error) {
	if x := p.of[a.Unmap()]; x != nil {
		return x, nil
	}
	return nil, rdserr.With(rdserr.ErrAddrNotAvail, "no device has the address %v", a)
}

// OneSidedCaps implements transport.OneSidedProvider.
func (p *byAddress) OneSidedCaps() transport.OneSidedCaps { return p.caps }

// Memory implements transport.OneSidedProvider: memory of the first, which the others adopt
// for good.
func (p *byAddress) Memory(n int) ([]byte, error) {
	b, err := p.list[0].Memory(n)
	for _, x := range p.list[1:] {
		if err == nil {
			_, err = x.Adopt(b)
		}
	}
	return b, err
}

// Adopt implements transport.OneSidedProvider.
func (p *byAddress) Adopt(b []byte) (release func(), err error) {
	var all []func()
	release = func() {
		for _, f := range all {
			f()
		}
	}
	for _, x := range p.list {
		f, err := x.Adopt(b)
		if err != nil {
			release()
			return nil, err
		}
		all = append(all, f)
	}
	return release, nil
}

// NewDomain implements transport.OneSidedProvider.
func (p *byAddress) NewDomain() transport.Domain {
	d := &addressDomain{p: p}
	if p.caps.Guards {
		return &guardedDomain{d}
	}
	return d
}

// DialOneSided implements transport.OneSidedProvider. local has an address.
func (p *byAddress) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	x, of, err := p.bind(d, local.Addr())
	if err != nil {
		return nil, nil, err
	}
	return x.DialOneSided(ctx, local, remote, of, attr, private)
}

// ListenOneSided implements transport.OneSidedProvider.
func (p *byAddress) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	x, err := p.at(local.Addr())
	if err != nil {
		return nil, err
	}
	return x.ListenOneSided(local, func(q transport.ConnRequest) { accept(&addressRequest{q, p, local.Addr()}) })
}

// addressRequest is a request to connect to an address.
type addressRequest struct {
	transport.ConnRequest
	p  *byAddress
	at netip.Addr
}

func (q *addressRequest) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	_, of, err := q.p.bind(d, q.at)
	if err != nil {
		return nil, err
	}
	return q.ConnRequest.Accept(of, attr, private)
}

// addressDomain is a domain of the address that its first link has.
type addressDomain struct {
	p *byAddress

	mu     sync.Mutex
	at     transport.OneSidedProvider // nil before the first link; guarded by mu
	of     transport.Domain           // of at; guarded by mu
	guard  func(p []byte) error       // set before the first link; guarded by mu
	defers func() bool                // likewise
	closed bool                       // guarded by mu
}

// guardedDomain is one of an address whose provider asks before it places bytes.
type guardedDomain struct{ *addressDomain }

var (
	_ transport.Domain  = (*addressDomain)(nil)
	_ transport.Guarded = (*guardedDomain)(nil)
)

// bind makes d a domain of the address a, if it is none yet.
func (p *byAddress) bind(d transport.Domain, a netip.Addr) (transport.OneSidedProvider, transport.Domain, error) {
	if g, ok := d.(*guardedDomain); ok {
		d = g.addressDomain
	}
	x, ok := d.(*addressDomain)
	if !ok || x.p != p {
		return nil, nil, rdserr.With(rdserr.ErrInvalid, "a domain of type %T is not this provider's", d)
	}
	at, err := p.at(a)
	if err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return nil, nil, errors.New("the domain is closed")
	case x.of == nil:
		x.at, x.of = at, at.NewDomain()
		if g, ok := x.of.(transport.Guarded); ok && x.guard != nil {
			g.Guard(x.guard)
			g.DeferReads(x.defers)
		}
	case x.at != at:
		return nil, nil, rdserr.With(rdserr.ErrInvalid, "a link of %v in a domain of another address", a)
	}
	return at, x.of, nil
}

// bound is the domain, nil before the first link.
func (d *addressDomain) bound() transport.Domain {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.of
}

// Register implements transport.Domain; before the first link nothing can be registered.
func (d *addressDomain) Register(p []byte) (key uint32, addr uint64) {
	if of := d.bound(); of != nil {
		return of.Register(p)
	}
	return 0, 0
}

// Revoke implements transport.Domain.
func (d *addressDomain) Revoke(key uint32) transport.Revocation {
	if of := d.bound(); of != nil {
		return of.Revoke(key)
	}
	return transport.Idle
}

// Take implements transport.Domain.
func (d *addressDomain) Take(key uint32) (filled int, how transport.Revocation) {
	if of := d.bound(); of != nil {
		return of.Take(key)
	}
	return 0, transport.Idle
}

// Close implements transport.Domain.
func (d *addressDomain) Close() {
	d.mu.Lock()
	d.closed = true
	of := d.of
	d.mu.Unlock()
	if of != nil {
		of.Close()
	}
}

// Guard implements transport.Guarded.
func (d *guardedDomain) Guard(f func(p []byte) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.guard = f
	if g, ok := d.of.(transport.Guarded); ok {
		g.Guard(f)
	}
}

// DeferReads implements transport.Guarded.
func (d *guardedDomain) DeferReads(f func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.defers = f
	if g, ok := d.of.(transport.Guarded); ok {
		g.DeferReads(f)
	}
}
