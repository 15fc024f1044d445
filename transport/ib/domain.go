package ib

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// domain is a protection domain of a device and the links made in it.
type domain struct {
	p   *Provider
	d   Domain
	err error // why there is no d

	mu    sync.Mutex
	rnd   *rand.ChaCha8      // guarded by mu
	links map[*link]struct{} // that have not ended; guarded by mu

	guard  func(p []byte) error // set before the first link
	defers func() bool          // likewise
	slowly slowly
}

// guardedDomain is one of a device that asks before it places bytes.
type guardedDomain struct{ *domain }

var (
	_ transport.Domain  = (*domain)(nil)
	_ transport.Guarded = (*guardedDomain)(nil)
)

func newDomain(p *Provider, seed [32]byte) transport.Domain {
	d := &domain{p: p, rnd: rand.NewChaCha8(seed), links: map[*link]struct{}{}}
	if d.d, d.err = p.v.NewDomain(d.withdrawn); d.err == nil && p.info.Caps.Guards {
		return &guardedDomain{d}
	}
	return d
}

// Register lets peers write p at an address drawn at random.
func (d *domain) Register(p []byte) (key uint32, addr uint64) {
	key, addr, _ = d.expose(p, 0)
	return key, addr
}

// expose registers p at the address at, or at one drawn at random if that is 0.
func (d *domain) expose(p []byte, at uint64) (key uint32, addr uint64, err error) {
	if d.err != nil {
		return 0, at, d.err
	}
	if at == 0 {
		at = d.addr()
	}
	rights := RemoteWrite
	if d.p.info.Caps.PeerRevokes {
		rights |= PeerRevokes
	}
	key, err = d.d.Expose(p, at, rights)
	return key, at, err
}

// addr is page-aligned, and far from both ends of the address space, so that sums with
// lengths pass neither.
func (d *domain) addr() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Uint64()>>8&^0xfff | 1<<56
}

// Revoke ends key.
func (d *domain) Revoke(key uint32) transport.Revocation {
	_, r := d.Take(key)
	return r
}

// Take is Revoke, and tells how much was written, if the device knows.
func (d *domain) Take(key uint32) (filled int, r transport.Revocation) {
	if d.err != nil {
		return 0, transport.Idle
	}
	w := d.d.Withdraw(key)
	return w.filled(), revocations[w.State]
}

var revocations = [...]transport.Revocation{Idle: transport.Idle, Busy: transport.Busy, Pending: transport.Pending}

// filled is how the link contract says it.
func (w Withdrawal) filled() int {
	if !w.Known {
		return transport.Unfilled
	}
	return w.Filled
}

// withdrawn tells the owner of one of the domain's links that key is at rest. On the
// reactor's thread.
func (d *domain) withdrawn(key uint32, w Withdrawal) {
	var to *link
	d.mu.Lock()
	for l := range d.links {
		if l.live.Load() {
			to = l
			break
		}
	}
	d.mu.Unlock()
	if to != nil { // else whoever waits for it learns it by the last Closed
		to.revoked(key, w.filled())
	}
}

// Close ends all keys.
func (d *domain) Close() {
	if d.err == nil {
		d.d.Close()
	}
}

func (d *domain) add(l *link) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links[l] = struct{}{}
}

func (d *domain) remove(l *link) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.links, l)
}

// Guard has f called before a peer's bytes are placed, for each packet of a write.
func (d *guardedDomain) Guard(f func(p []byte) error) {
	d.guard = f
	d.d.Guard(d.mayPlace)
}

// DeferReads has f called about bytes that the guard cannot take yet (transport.ErrNotYet): while it
// returns true they are not taken, and the peer sends them again. A device cannot leave them in a
// socket. What the guard takes is taken whatever f says: a peer that is told to send again goes
// back, which a kernel does not outlive with reads under way (ADR 40), and the packets of a device
// are of many sessions, most of which want no memory.
func (d *guardedDomain) DeferReads(f func() bool) {
	d.defers = f
	d.d.Guard(d.mayPlace)
}

func (d *domain) mayPlace(p []byte) error {
	if d.guard == nil {
		return nil
	}
	err := d.guard(p)
	if d.defers != nil && errors.Is(err, transport.ErrNotYet) && !d.defers() {
		err = d.guard(p) // there has come room since
	}
	switch {
	case err == nil:
		d.slowly.over()
	case d.defers != nil && errors.Is(err, transport.ErrNotYet) && d.slowly.wait(d.p.m.Clock()):
		return ErrNotNow
	}
	return err
}

// deferFor is how long bytes are not taken in succession: a peer that is not heard for
// longer would be given up.
const deferFor = 300 * time.Millisecond

// slowly bounds a time of deferring. A domain's packets are taken on one thread, but for
// tests, which is why its field is atomic.
type slowly struct{ since atomic.Int64 }

// wait reports whether bytes may wait at now.
func (s *slowly) wait(now time.Duration) bool {
	since := s.since.Load()
	if since == 0 {
		s.since.Store(int64(now))
		return true
	}
	return now-time.Duration(since) < deferFor
}

// over notes that bytes were taken.
func (s *slowly) over() {
	if s.since.Load() != 0 {
		s.since.Store(0)
	}
}
