package simtest

import (
	"context"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/sim"
)

// volNet makes the links of a process of volumes (transport.OneSidedProvider), and sees which
// memory they may touch.
type volNet volProcess

var _ transport.OneSidedProvider = (*volNet)(nil)

func (l *volNet) nic(a netip.Addr) *sim.Host {
	i := slices.IndexFunc(l.nics, func(h *sim.Host) bool { return h.Addr == a })
	return l.nics[i]
}

// volDomain is a protection domain.
type volDomain struct {
	transport.Guarded
	keys map[uint32]*byte // what peers may write: where it begins, by key
}

func (l *volNet) OneSidedCaps() transport.OneSidedCaps {
	return sim.NewOneSided(l.nics[0]).OneSidedCaps()
}

func (l *volNet) Memory(n int) ([]byte, error) { return sim.NewOneSided(l.nics[0]).Memory(n) }

func (l *volNet) Adopt(b []byte) (func(), error) { return sim.NewOneSided(l.nics[0]).Adopt(b) }

func (l *volNet) NewDomain() transport.Domain {
	d := &volDomain{sim.NewOneSided(l.nics[0]).NewDomain().(transport.Guarded), map[uint32]*byte{}}
	l.domains = append(l.domains, d)
	return d
}

func (d *volDomain) Register(p []byte) (uint32, uint64) {
	key, addr := d.Guarded.Register(p)
	d.keys[key] = unsafe.SliceData(p)
	return key, addr
}

func (k *volLink) Grant(p []byte, at uint64) (uint32, uint64) {
	key, addr := k.OneSided.Grant(p, at)
	k.dom.keys[key] = unsafe.SliceData(p)
	return key, addr
}

func (d *volDomain) Revoke(key uint32) transport.Revocation {
	delete(d.keys, key)
	return d.Guarded.Revoke(key)
}

func (d *volDomain) Take(key uint32) (int, transport.Revocation) {
	delete(d.keys, key)
	return d.Guarded.Take(key)
}

func (d *volDomain) Close() {
	d.keys = nil
	d.Guarded.Close()
}

// writable reports whether a peer may write to where b begins.
func (p *volProcess) writable(b []byte) bool {
	p.domains = slices.DeleteFunc(p.domains, func(d *volDomain) bool { return d.keys == nil })
	return slices.ContainsFunc(p.domains, func(d *volDomain) bool { return d.writable(b) })
}

func (d *volDomain) writable(b []byte) bool {
	for _, at := range d.keys {
		if at == unsafe.SliceData(b) {
			return true
		}
	}
	return false
}

// rewritable reports whether the path that last wrote to the chunk b may do so again.
func (p *volProcess) rewritable(b []byte) bool {
	d := p.writers[unsafe.SliceData(b)]
	return d != nil && d.writable(b)
}

// reads reports whether a link that is being closed may still read b.
func (p *volProcess) reads(b []byte) bool {
	for _, k := range p.links {
		if k.hung && !k.idle() && slices.Contains(k.posted, unsafe.SliceData(b)) {
			return true
		}
	}
	return false
}

// dialTime is how long a dial waits for the other end.
const dialTime = 5 * time.Second

func (l *volNet) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	p, w := (*volProcess)(l), l.v.w
	var link transport.OneSided
	var rsp []byte
	var err error
	given := false
	done := make(chan struct{})
	src := uint16(40000 + w.rng.Intn(20000))
	sim.NewOneSided(l.nic(local.Addr())).Dial(src, remote.Addr(), dialTime, d.(*volDomain).Guarded, attr, private, func(k transport.OneSided, r []byte, e error) {
		p.event(func() {
			if given && e == nil { // nobody wants it any more
				k.Close()
			}
			if e == nil {
				link = p.newLink(k, d.(*volDomain))
			}
			rsp, err = r, e
			close(done)
		})()
	})
	if p.wait(volume.Forever, done, ctx.Done()) == 0 {
		return link, rsp, err
	}
	given = true
	return nil, nil, ctx.Err()
}

// volListener is where a process listens.
type volListener struct {
	at     netip.AddrPort
	closed bool
}

func (l *volListener) Addr() netip.AddrPort { return l.at }
func (l *volListener) Close() error {
	l.closed = true
	return nil
}

func (l *volNet) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	p, k := (*volProcess)(l), &volListener{at: local}
	sim.NewOneSided(l.nic(local.Addr())).Listen(func(r transport.ConnRequest) {
		p.event(func() {
			if k.closed {
				r.Reject(nil)
				return
			}
			accept(&volRequest{r, p, local})
		})()
	})
	return k, nil
}

// volRequest is a request to connect.
type volRequest struct {
	transport.ConnRequest
	p     *volProcess
	local netip.AddrPort
}

func (r *volRequest) LocalAddr() netip.AddrPort { return r.local }

func (r *volRequest) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	k, err := r.ConnRequest.Accept(d.(*volDomain).Guarded, attr, private)
	if err != nil {
		return nil, err
	}
	return r.p.newLink(k, d.(*volDomain)), nil
}

// volLink is a link, and its handler.
type volLink struct {
	transport.OneSided
	transport.OneSidedHandler
	p      *volProcess
	dom    *volDomain
	hung   bool    // Close was called
	posted []*byte // where the data begins of each operation that has not been told to be sent
}

func (p *volProcess) newLink(l transport.OneSided, d *volDomain) *volLink {
	k := &volLink{OneSided: l, p: p, dom: d}
	p.links = append(p.links, k)
	return k
}

// Start begins to read. A process that is frozen reads nothing.
func (k *volLink) Start(h transport.OneSidedHandler, recvBytes int) {
	k.OneSidedHandler = h
	k.OneSided.Start(k, recvBytes)
	c, ok := k.OneSided.(connection)
	if !ok {
		return // a device's, whose thread is frozen
	}
	if e := c.End(); e.Readable != nil {
		e.Readable, e.Writable = k.p.event(e.Readable), k.p.event(e.Writable)
	}
}

// connection is a link over TCP.
type connection interface {
	End() *sim.End
	Idle() bool
	Die()
}

// idle reports whether everything that was posted is written.
func (k *volLink) idle() bool {
	if c, ok := k.OneSided.(connection); ok {
		return c.Idle()
	}
	return len(k.posted) == 0 // what is under way when a device's link is closed is told by Closed alone
}

func (k *volLink) Sent(n int) {
	k.posted = k.posted[min(n, len(k.posted)):]
	k.OneSidedHandler.Sent(n)
}

func (k *volLink) Post(op *transport.Op) {
	if k.idle() {
		k.posted = k.posted[:0]
	}
	k.p.says(k.LocalAddr().Addr(), op)
	k.posted = append(k.posted, unsafe.SliceData(op.Data)) // before Post, which may tell that it is sent
	k.OneSided.Post(op)
}

// Close is told to the thread that reads the link, which takes a moment.
func (k *volLink) Close() {
	if k.hung {
		return
	}
	k.hung = true
	if _, ok := k.OneSided.(connection); !ok {
		k.OneSided.Close()
		return
	}
	w := k.p.v.w
	w.After(w.upTo(5*time.Millisecond), k.p.event(k.OneSided.Close))
}

func (k *volLink) Written(w transport.Placed) error {
	k.p.v.w.mix(21, uint64(w.N), uint64(w.Imm))
	if at := k.dom.keys[w.Key]; at != nil {
		k.p.writers[at] = k.dom
	}
	return k.OneSidedHandler.Written(w)
}

func (k *volLink) Received(data []byte, imm uint32, hasImm bool) error {
	k.p.v.w.mix(22, uint64(len(data)), uint64(imm))
	return k.OneSidedHandler.Received(data, imm, hasImm)
}

func (k *volLink) Invalidated(key uint32, filled int) error {
	delete(k.dom.keys, key)
	k.p.told(key)
	return k.OneSidedHandler.Invalidated(key, filled)
}

func (k *volLink) End() {
	k.p.allTold()
	k.OneSidedHandler.End()
	if k.p.depth == 0 { // the first turn of a link is an event of its own
		k.p.v.w.After(0, k.p.event(func() {}))
	}
}

func (k *volLink) Closed(err error) {
	k.p.event(func() {
		k.p.links = slices.DeleteFunc(k.p.links, func(o *volLink) bool { return o == k })
		k.OneSidedHandler.Closed(err)
	})()
}

// die is what the end of the process does to a link.
func (k *volLink) die() {
	if c, ok := k.OneSided.(connection); ok {
		c.Die()
	}
}
