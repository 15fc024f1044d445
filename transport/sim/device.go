package sim

import (
	"fmt"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// Device says in what one-sided links differ from those over TCP, as links of RDMA devices
// do. The zero value is TCP.
type Device struct {
	// Late is how long the end of a key is Pending at most, mostly; it is never told if the
	// link that would tell has ended by then. 0: keys end at once.
	Late time.Duration
	// Slow is how long after it was written an operation counts as sent, at most.
	Slow      time.Duration
	Nowhere   bool // it does not tell where a write went (OneSidedCaps.Places)
	Blind     bool // nor how much was written (Fills)
	Pinned    bool
	Unguarded bool // its domains are not transport.Guarded
}

// NewDevice makes the links of h, which are those of a device.
func NewDevice(h *Host, d Device) *OneSided { return &OneSided{h: h, dev: d} }

// OneSidedCaps implements transport.OneSidedProvider.
func (p *OneSided) OneSidedCaps() transport.OneSidedCaps {
	return transport.OneSidedCaps{SecretKeys: true, Places: !p.dev.Nowhere, Faults: true, PeerRevokes: true,
		Fills: !p.dev.Blind, Guards: !p.dev.Unguarded, Pinned: p.dev.Pinned}
}

// Memory implements transport.OneSidedProvider: any memory can be posted.
func (p *OneSided) Memory(n int) ([]byte, error) { return make([]byte, n), nil }

// Adopt implements transport.OneSidedProvider; see Memory.
func (p *OneSided) Adopt([]byte) (release func(), err error) { return func() {}, nil }

// NewDomain makes a protection domain.
func (p *OneSided) NewDomain() transport.Domain {
	var seed [32]byte
	p.h.n.rng.Read(seed[:])
	d := &domain{Regions: transport.NewRegions(seed), p: p, ends: map[uint32]bool{}}
	if p.dev.Unguarded {
		return plain{d}
	}
	return d
}

// domain is a transport.Guarded.
type domain struct {
	*transport.Regions
	p     *OneSided
	links []*link         // that live
	ends  map[uint32]bool // keys that are good (false), or whose end is Pending (true); only if it may be
}

var _ transport.Guarded = (*domain)(nil)

// plain is a domain that cannot be guarded.
type plain struct{ transport.Domain }

// domainOf returns the domain that d is.
func domainOf(d transport.Domain) (*domain, error) {
	if u, ok := d.(plain); ok {
		d = u.Domain
	}
	if x, ok := d.(*domain); ok {
		return x, nil
	}
	return nil, fmt.Errorf("sim: a domain of type %T is not this provider's", d)
}

// Register implements transport.Domain.
func (d *domain) Register(p []byte) (key uint32, addr uint64) { return d.Grant(p, 0) }

// Grant is Register at an address.
func (d *domain) Grant(p []byte, at uint64) (key uint32, addr uint64) {
	key, addr = d.Regions.Grant(p, at)
	if d.p.dev.Late > 0 {
		d.ends[key] = false
	}
	return key, addr
}

// Revoke implements transport.Domain.
func (d *domain) Revoke(key uint32) transport.Revocation {
	_, how := d.Take(key)
	return how
}

// Take implements transport.Domain.
func (d *domain) Take(key uint32) (filled int, how transport.Revocation) {
	n, dev := d.p.h.n, &d.p.dev
	pending, known := d.ends[key]
	switch {
	// Without a link there is no queue for the work request, and nothing that could write.
	case !known || len(d.links) == 0:
	case pending:
		return transport.Unfilled, transport.Pending
	case n.rng.Intn(4) > 0:
		d.ends[key] = true
		l := d.links[n.rng.Intn(len(d.links))]
		l.after(time.Duration(n.rng.Int63n(int64(dev.Late))), func() { d.end(l, key) })
		return transport.Unfilled, transport.Pending
	}
	return d.take(key)
}

func (d *domain) take(key uint32) (filled int, how transport.Revocation) {
	delete(d.ends, key)
	if filled, how = d.Regions.Take(key); d.p.dev.Blind {
		filled = transport.Unfilled
	}
	return filled, how
}

// end ends key, and has l tell. What is writing with the key ends its link by itself.
func (d *domain) end(l *link, key uint32) {
	filled, how := d.take(key)
	if l.ended || l.h == nil || how != transport.Idle {
		return
	}
	l.h.Begin()
	err := l.h.Revoked(key, filled)
	l.h.End()
	if err != nil {
		l.end(err)
	}
}

// after runs f in d, if the program still runs then.
func (l *link) after(d time.Duration, f func()) {
	epoch := l.e.h.epoch
	l.e.n.After(d, func() {
		if l.e.h.epoch == epoch {
			f()
		}
	})
}

// handler is the owner's, of which a device keeps what it does not tell, and what it tells
// later.
type handler struct {
	transport.OneSidedHandler
	l   *link
	dev *Device
	at  time.Duration // before which no operation counts as sent any more
}

func (h *handler) Sent(n int) {
	if h.dev.Slow == 0 {
		h.OneSidedHandler.Sent(n)
		return
	}
	net := h.l.e.n
	h.at = max(h.at, net.now+time.Duration(net.rng.Int63n(int64(h.dev.Slow))))
	h.l.after(h.at-net.now, func() {
		if !h.l.ended {
			h.Begin()
			h.OneSidedHandler.Sent(n)
			h.End()
		}
	})
}

func (h *handler) Written(w transport.Placed) error {
	if h.dev.Nowhere {
		w.Known, w.Key, w.Addr = false, 0, 0
	}
	return h.OneSidedHandler.Written(w)
}

func (h *handler) Invalidated(key uint32, filled int) error {
	delete(h.l.d.ends, key)
	if h.dev.Blind {
		filled = transport.Unfilled
	}
	return h.OneSidedHandler.Invalidated(key, filled)
}
